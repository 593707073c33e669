//! A connection that gives up on endless answers. The ClickHouse client collects the body of an
//! error without a bound, so the bound is kept below it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// More than this between two requests is no answer to what we ask: those are a few rows.
const MOST: usize = 32 << 20;

/// Counts what comes in since something last went out; HTTP/1 is a question and an answer in turn.
pub struct Bounded<T> {
    inner: T,
    came: usize,
}

impl<T> Bounded<T> {
    /// Bounds a fresh connection.
    pub fn new(inner: T) -> Self {
        Bounded { inner, came: 0 }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Bounded<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.came > MOST {
            let error = io::Error::new(io::ErrorKind::InvalidData, "the answer is endless");
            return Poll::Ready(Err(error));
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(context, buffer);
        self.came += buffer.filled().len() - before;
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Bounded<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.came = 0;
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

impl<T: Connection> Connection for Bounded<T> {
    fn connected(&self) -> Connected {
        self.inner.connected()
    }
}
