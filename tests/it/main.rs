//! Tests of the whole exporter against real servers.
//!
//! They need the servers that `dev/test` starts (`make test` calls it) and tells by the environment
//! variable `DUP_TEST_PARTS`: ClickHouse 26.9 (the engine, by chdb), 23.10 (likewise), 18.16 (three
//! real servers that form a cluster, and four of two shards with two replicas each), one 26.9 without
//! `system.part_log`, Kafka 4.4 and 3.9, and a Kafka that asks for passwords and certificates. Every
//! test has databases, topics, groups and an exporter of its own; one that kills a server starts its
//! own.
//!
//! What needs a real Kafka is skipped by name where the broker is the fallback; `dev/test` prints and
//! counts the skips, and `DUP_REQUIRE_KAFKA=1` makes them failures.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "clippy.toml allows them in tests, but not in what tests stand on"
)]
#![allow(
    clippy::too_many_lines,
    reason = "a test reads from top to bottom, and some are tables of cases"
)]

mod alerts;
mod cli;
mod clickhouse_cluster;
mod clickhouse_profiles;
mod clickhouse_rights;
mod config;
mod contract;
mod copies;
mod crowd;
mod faults;
mod group_kinds;
mod groups;
mod kafka;
mod kafka_security;
mod kafka_wire;
mod names;
mod outages;
mod part_log;
mod pipelines;
mod program;
mod reload;
mod several_tables;
mod summary;
mod support;
mod table;
mod tls;
mod traps;
mod watch;
mod web;
