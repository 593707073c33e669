.PHONY: demo test bench soak lint

# The incident on a real ClickHouse and a real Kafka. KEEP=1 leaves them up; BREAK=one-worker must fail.
demo:
	dev/demo/run

test:
	dev/test

bench:
	dev/bench

# ROUNDS=N sets how many rounds of each.
soak:
	dev/soak
	DUP_OUTAGES=soak DUP_TEST_NAMES=kafka dev/test --release --test it outages:: -- --nocapture

lint:
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings
