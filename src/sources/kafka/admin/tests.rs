//! Against librdkafka's own mock cluster, which knows offsets but no listings.

use rdkafka::mocking::MockCluster;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

use super::*;
use crate::sources::kafka::failure::code;

const WAIT: Duration = Duration::from_secs(20);

fn client(bootstrap: String) -> Librdkafka {
    let own = BTreeMap::from([("bootstrap.servers".to_owned(), bootstrap)]);
    Librdkafka::new(&properties::complete(own)).unwrap()
}

fn answer(kafka: &mut Librdkafka, broker: Option<i32>, request: &Request<'_>) -> Reply {
    let tag = kafka.ask(broker, request, WAIT);
    let (answered, reply) = kafka.next(WAIT).unwrap();
    assert_eq!(answered, tag);
    reply
}

#[test]
fn a_group_that_moved_is_a_failure_and_not_a_crash() {
    // librdkafka takes these two codes for a reason to look up the coordinator of the group that
    // it thinks it is a member of, and does not look whether there is one.
    let cluster = MockCluster::new(1).unwrap();
    let mut kafka = client(cluster.bootstrap_servers());
    assert_eq!(kafka.brokers(WAIT).unwrap(), [1]);
    for (error, code) in [
        (
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_COORDINATOR,
            code::NOT_COORDINATOR,
        ),
        (
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE,
            code::COORDINATOR_NOT_AVAILABLE,
        ),
        (
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS,
            code::COORDINATOR_LOAD_IN_PROGRESS,
        ),
    ] {
        cluster.request_errors(RDKafkaApiKey::OffsetFetch, &[error]);
        let failure = answer(&mut kafka, Some(1), &Request::Offsets(c"moved")).unwrap_err();
        assert_eq!(failure.code, code);
        assert!(failure.is_passing());
    }
    let Ok(Answer::Offsets(offsets)) = answer(&mut kafka, None, &Request::Offsets(c"moved")) else {
        panic!("the client is of no use any more");
    };
    assert!(offsets.is_empty());
}

#[test]
fn a_partition_that_is_not_there_fails_alone() {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic("playlog", 2, 1).unwrap();
    let mut kafka = client(cluster.bootstrap_servers());
    let asked = [("playlog".to_owned(), 0), ("playlog".to_owned(), 7)];
    let Ok(Answer::Ends(mut ends)) = answer(&mut kafka, None, &Request::Ends(&asked)) else {
        panic!("no ends");
    };
    ends.sort_by_key(|end| end.1);
    assert_eq!(ends[0], ("playlog".to_owned(), 0, Ok(0)));
    assert!(ends[1].2.is_err());
}

#[test]
fn a_refused_connection_is_told_by_the_trouble() {
    let mut kafka = client("127.0.0.1:1".to_owned());
    let failure = kafka.brokers(Duration::from_millis(500)).unwrap_err();
    assert!(matches!(
        failure.reason(),
        Reason::Timeout | Reason::Connection
    ));
    let trouble = kafka.trouble().unwrap();
    assert_eq!(trouble.reason(), Reason::Connection);
    assert!(trouble.to_string().contains("refused"), "{trouble}");
}

#[test]
fn a_refused_property_is_named_and_a_secret_is_not_quoted() {
    let refusal = |name: &str, value: &str| {
        let own = [("security.protocol", "ssl"), (name, value)];
        let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let own = BTreeMap::from(own);
        let error = Librdkafka::new(&properties::complete(own)).err().unwrap();
        assert_eq!(error.reason(), Reason::Unsupported);
        error.to_string()
    };
    assert!(refusal("no.such.property", "hunter2").contains("`no.such.property`"));
    assert!(!refusal("no.such.property", "hunter2").contains("hunter2"));
    assert!(refusal("security.protocol", "carrier_pigeon").contains("carrier_pigeon"));
    let pem = refusal("ssl.key.pem", "hunter2");
    assert!(pem.contains("ssl") && !pem.contains("hunter2"), "{pem}");
}
