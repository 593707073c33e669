//! The requests that librdkafka's client can't send, byte by byte: heartbeats of share and streams
//! groups, and of consumer groups as Kafka 3 knows them, a classic member of any protocol type, a commit that expires; and a listing that tells
//! the type of every group, to know that those groups are really there.
//!
//! The crate `kafka-protocol` was weighed and left: it has no StreamsGroupHeartbeat (0.18), and
//! costs more to build than these lines do to read. The layouts are those of Kafka's
//! `common/message/*.json`.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;

use crate::support::PATIENCE;

const OFFSET_COMMIT: i16 = 8;
const JOIN_GROUP: i16 = 11;
const LIST_GROUPS: i16 = 16;
const CONSUMER_GROUP_HEARTBEAT: i16 = 68;
const SHARE_GROUP_HEARTBEAT: i16 = 76;
const STREAMS_GROUP_HEARTBEAT: i16 = 88;

/// Joins a share or streams group; `LEAVE` leaves it.
pub const JOIN: i32 = 0;
pub const LEAVE: i32 = -1;

/// A connection to the one broker of a cluster, which coordinates every group.
pub struct Wire(TcpStream);

impl Wire {
    pub fn connect(bootstrap: &str) -> Self {
        let stream = TcpStream::connect(bootstrap).expect("the broker listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Wire(stream)
    }

    /// Every group that the broker lists: its type and its state.
    pub fn groups(&mut self) -> BTreeMap<String, (String, String)> {
        let body = Bytes::default().array(0).array(0).tags();
        let mut answer = self.ask(LIST_GROUPS, 5, true, body);
        answer.skip(4); // throttle time
        assert_eq!(answer.int16(), 0, "the broker lists its groups");
        let count = answer.varint() - 1;
        let group = |_| {
            let [name, _protocol_type, state, kind] = [(); 4].map(|()| answer.compact());
            assert_eq!(answer.varint(), 0, "no tags");
            (name, (kind, state))
        };
        (0..count).map(group).collect()
    }

    /// Joins a consumer group of KIP-848 as its early version 0 was, which Kafka 3.9 speaks and
    /// librdkafka does not. Returns the id that the broker gave the member.
    pub fn consumer(&mut self, group: &str, member: &str, epoch: i32, topic: &str) -> String {
        let body = Bytes::default().compact(group).compact(member).int32(epoch);
        // No instance, no rack, rebalance timeout, subscription, no assignor, no partition yet.
        let body = body.null().null().int32(60_000).array(1).compact(topic);
        let body = body.null().array(0).tags();
        let mut answer = self.ask(CONSUMER_GROUP_HEARTBEAT, 0, true, body);
        answer.accept();
        assert_eq!(answer.varint(), 0, "no words of error");
        answer.compact()
    }

    /// A heartbeat of a member of a share group.
    pub fn share(&mut self, group: &str, member: &str, epoch: i32, topic: &str) {
        let body = Bytes::default().compact(group).compact(member).int32(epoch);
        let body = body.null().array(1).compact(topic).tags();
        self.ask(SHARE_GROUP_HEARTBEAT, 1, true, body).accept();
    }

    /// A heartbeat of a member of a streams group that reads one topic and keeps no state.
    pub fn streams(&mut self, group: &str, member: &str, epoch: i32, topic: &str) {
        let body = Bytes::default().compact(group).compact(member).int32(epoch);
        // Endpoint epoch, no instance, no rack, rebalance timeout.
        let mut body = body.int32(0).null().null().int32(60_000);
        body = match epoch {
            // A topology of epoch 0 with one subtopology, whose other five lists are empty.
            JOIN => {
                let body = body.byte(1).int32(0).array(1).compact("0").array(1);
                let body = (0..5).fold(body.compact(topic), |body, _| body.array(0));
                body.tags().tags()
            }
            _ => body.byte(0xff),
        };
        // No task of any of the three kinds, a process, and neither endpoint, tags nor offsets.
        let body = body.array(0).array(0).array(0).compact("process");
        let body = body.byte(0xff).null().null().null().byte(0).tags();
        self.ask(STREAMS_GROUP_HEARTBEAT, 0, true, body).accept();
    }

    /// Joins a classic group as a member of this protocol type ("connect", "consumer", …) that
    /// never asks for its share: the group waits for it until it is taken for dead, after 30 s.
    pub fn join(&mut self, group: &str, protocol_type: &str) {
        let body = Bytes::default().string(group).int32(30_000).int32(30_000);
        let body = body.string("").string(protocol_type);
        let body = body.int32(1).string("default").int32(0);
        let mut answer = self.ask(JOIN_GROUP, 2, false, body);
        answer.skip(4); // throttle time
        assert_eq!(answer.int16(), 0, "the member joins");
    }

    /// Commits without being a member; the broker forgets the offset after `retention_ms` (-1:
    /// when it forgets any). Returns the broker's error code.
    pub fn commit(
        &mut self,
        group: &str,
        topic: &str,
        offsets: &[(i32, i64)],
        retention_ms: i64,
    ) -> i16 {
        let body = Bytes::default().string(group).int32(-1).string("");
        let body = body.int64(retention_ms).int32(1).string(topic);
        let body = body.int32(i32::try_from(offsets.len()).expect("few"));
        let partition = |body: Bytes, &(partition, offset): &(i32, i64)| {
            body.int32(partition).int64(offset).string("")
        };
        let body = offsets.iter().fold(body, partition);
        let answer = self.ask(OFFSET_COMMIT, 2, false, body);
        // The last thing in it is the error code of the last partition.
        let code = answer.0.last_chunk().expect("an error code");
        i16::from_be_bytes(*code)
    }

    fn ask(&mut self, key: i16, version: i16, flexible: bool, body: Bytes) -> Answer {
        let header = Bytes::default().int16(key).int16(version).int32(7);
        let header = header.string("tests");
        let header = if flexible { header.tags() } else { header };
        let length = i32::try_from(header.0.len() + body.0.len()).expect("a short request");
        let request = [&length.to_be_bytes()[..], &header.0, &body.0].concat();
        self.0.write_all(&request).expect("the broker reads");
        let mut length = [0; 4];
        self.0.read_exact(&mut length).expect("an answer");
        let length = usize::try_from(i32::from_be_bytes(length)).expect("a length");
        let mut answer = vec![0; length];
        self.0.read_exact(&mut answer).expect("a whole answer");
        let mut answer = Answer(answer);
        answer.skip(if flexible { 5 } else { 4 }); // what it answers, and no tags
        answer
    }
}

/// A request under way.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn with(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn byte(self, value: u8) -> Self {
        self.with(&[value])
    }

    fn int16(self, value: i16) -> Self {
        self.with(&value.to_be_bytes())
    }

    fn int32(self, value: i32) -> Self {
        self.with(&value.to_be_bytes())
    }

    fn int64(self, value: i64) -> Self {
        self.with(&value.to_be_bytes())
    }

    fn string(self, text: &str) -> Self {
        let length = i16::try_from(text.len()).expect("a short text");
        self.int16(length).with(text.as_bytes())
    }

    /// Lengths of flexible versions are one more than they say, so that 0 is null.
    fn array(self, length: u8) -> Self {
        assert!(length < 0x7f, "one byte of a variable length");
        self.byte(length + 1)
    }

    fn compact(self, text: &str) -> Self {
        let length = u8::try_from(text.len()).expect("a short text");
        self.array(length).with(text.as_bytes())
    }

    fn null(self) -> Self {
        self.byte(0)
    }

    fn tags(self) -> Self {
        self.byte(0)
    }
}

/// An answer, read from its front.
struct Answer(Vec<u8>);

impl Answer {
    fn skip(&mut self, count: usize) -> Vec<u8> {
        self.0.drain(..count).collect()
    }

    fn int16(&mut self) -> i16 {
        i16::from_be_bytes(self.skip(2).try_into().expect("two bytes"))
    }

    fn varint(&mut self) -> usize {
        let byte = usize::from(self.skip(1)[0]);
        match byte & 0x80 {
            0 => byte,
            _ => (byte & 0x7f) | self.varint() << 7,
        }
    }

    /// Null is taken for the empty text.
    fn compact(&mut self) -> String {
        let length = self.varint().saturating_sub(1);
        String::from_utf8_lossy(&self.skip(length)).into_owned()
    }

    /// Every heartbeat's answer begins with a throttle time and an error code.
    fn accept(&mut self) {
        self.skip(4);
        let code = self.int16();
        let words = String::from_utf8_lossy(&self.0);
        assert_eq!(code, 0, "the heartbeat is accepted: {words}");
    }
}
