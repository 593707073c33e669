//! Clients that answer typed questions. They know nothing of metrics: a check asks, judges and
//! says.

mod bounded;
pub mod clickhouse;
pub mod kafka;
mod tls;
