//! The check of consumer groups, on a real Kafka.
