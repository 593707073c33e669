//! With fake workers: small shell scripts that misbehave in one way each.

use std::path::Path;

use tempfile::TempDir;

use super::*;

/// Answers every question, and tells its process id as the number of groups left out.
const GOOD: &str = r#"
read setup
while read question; do
  id=${question#*\"id\":}; id=${id%%,*}
  echo "{\"id\":$id,\"spent\":false,\"result\":{\"Ok\":{\"groups\":{},\"log_ends\":{},\"listing_errors\":[],\"groups_cut\":$$}}}"
done
"#;
const LIMIT: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(300);

struct Fake {
    client: WorkerClient,
    dir: TempDir,
}

impl Fake {
    /// The script finds the directory of the test in `$dir`.
    fn new(script: &str) -> Self {
        Self::with(script, &[])
    }

    fn with(script: &str, properties: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("worker.sh");
        let text = format!(
            "dir='{}'\necho $$ > $dir/pid\n{script}",
            dir.path().display()
        );
        std::fs::write(&path, text).unwrap();
        let pair = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned().into());
        let properties = properties.iter().map(pair).collect();
        let mut client = WorkerClient::new("test", "/bin/sh".into(), properties);
        client.arguments.insert(0, path.into());
        Fake { client, dir }
    }

    async fn look(&mut self, limit: Duration) -> Result<usize, Error> {
        let filter = Filter {
            groups_include: vec![],
            groups_exclude: vec![],
            topics_include: vec![],
            topics_exclude: vec![],
            max_groups: 1,
        };
        let snapshot = self.client.look(&filter, limit).await?;
        Ok(snapshot.groups_cut)
    }

    /// Looks that fail with the given words, and leave no process behind.
    async fn fails(&mut self, limit: Duration, words: &str) {
        let error = self.look(limit).await.unwrap_err();
        assert_eq!(error.reason(), Reason::Worker);
        assert!(error.to_string().contains(words), "{error}");
        assert!(!self.is_running(), "the process is still there");
    }

    fn pid(&self) -> String {
        let pid = std::fs::read_to_string(self.dir.path().join("pid")).unwrap();
        pid.trim().to_owned()
    }

    fn is_running(&self) -> bool {
        Path::new("/proc").join(self.pid()).exists()
    }
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

#[tokio::test]
async fn one_worker_answers_many_looks() {
    let mut fake = Fake::new(GOOD);
    let first = fake.look(LIMIT).await.unwrap();
    assert_eq!(first.to_string(), fake.pid());
    for _ in 0..5 {
        assert_eq!(fake.look(LIMIT).await, Ok(first));
    }
}

#[tokio::test]
async fn a_worker_that_dies_at_once_costs_one_look_and_is_restarted_after_a_pause() {
    let script = format!("[ -e $dir/again ] || {{ touch $dir/again; exit 3; }}\n{GOOD}");
    let mut fake = Fake::new(&script);
    fake.fails(LIMIT, "exit status: 3").await;
    fake.fails(LIMIT, "is restarted in").await;
    fake.client.not_before = fake.client.not_before.map(|due| due - LONGEST_PAUSE);
    fake.look(LIMIT).await.unwrap();
    assert_eq!(fake.client.failures, 0);
}

#[tokio::test]
async fn the_pause_grows_up_to_its_ceiling() {
    let mut fake = Fake::new("exit 3");
    let mut pauses = vec![];
    for _ in 0..20 {
        fake.client.failed();
        let due = fake.client.not_before.unwrap();
        pauses.push(due.saturating_duration_since(Instant::now()));
    }
    assert!(pauses[0] <= PAUSE && pauses[1] > PAUSE);
    assert!(pauses[19] <= LONGEST_PAUSE && pauses[19] > LONGEST_PAUSE / 2);
}

#[tokio::test]
async fn a_program_that_is_not_there_is_an_error_of_the_worker() {
    let mut fake = Fake::new(GOOD);
    fake.client.program = "/nonexistent/dup_exporter".into();
    let error = fake.look(LIMIT).await.unwrap_err();
    assert_eq!(error.reason(), Reason::Worker);
    assert!(error.to_string().contains("can't be started"), "{error}");
}

#[tokio::test]
async fn a_worker_that_dies_in_mid_answer_is_no_answer() {
    let mut fake = Fake::new("read s; read q; printf '{\"id\":1,'; exit 0");
    fake.fails(LIMIT, "exit status: 0").await;
}

#[tokio::test]
async fn a_worker_that_hangs_is_killed_at_the_limit() {
    let mut fake = Fake::new("read s; read q; exec sleep 1000");
    fake.fails(SHORT, "did not answer within 300ms").await;
}

#[tokio::test]
async fn a_worker_that_closes_its_output_and_stays_is_killed() {
    let mut fake = Fake::new("read s; exec sleep 1000 >&-");
    fake.fails(LIMIT, "closed its stdout").await;
}

#[tokio::test]
async fn a_flood_is_cut_and_its_worker_killed() {
    let mut fake = Fake::new("read s; read q; exec cat /dev/zero");
    fake.client.max_answer = 1024 * 1024;
    fake.fails(LIMIT, "floods").await;
}

#[tokio::test]
async fn nonsense_is_no_answer() {
    for answer in ["hello", "{}", "[1]", "null", ""] {
        let mut fake = Fake::new(&format!("read s; read q; echo '{answer}'; exec sleep 1000"));
        fake.fails(LIMIT, "nonsense").await;
    }
}

#[tokio::test]
async fn the_answer_to_another_question_is_not_taken() {
    let late = GOOD.replace("id=${id%%,*}", "id=$((${id%%,*} - 1))");
    let mut fake = Fake::new(&late);
    fake.fails(LIMIT, "nonsense").await;
}

#[tokio::test]
async fn an_answer_that_comes_too_late_is_not_taken_for_the_next_one() {
    // The first process answers its question after the limit, and any further one at once.
    let script = format!("[ -e $dir/again ] || {{ touch $dir/again; sleep 1; }}\n{GOOD}");
    let mut fake = Fake::new(&script);
    fake.fails(SHORT, "did not answer").await;
    let late = fake.pid();
    fake.client.not_before = None;
    let next = fake.look(LIMIT).await.unwrap();
    assert_ne!(next.to_string(), late);
}

#[tokio::test]
async fn a_look_that_is_dropped_takes_its_worker_along() {
    let script = format!("[ -e $dir/again ] || {{ touch $dir/again; exec sleep 1000; }}\n{GOOD}");
    let mut fake = Fake::new(&script);
    let again = fake.dir.path().join("again");
    tokio::select! {
        _ = fake.look(LIMIT) => panic!("the worker sleeps"),
        () = until("the worker is asked", || again.exists()) => {}
    }
    until("the dropped process ends", || !fake.is_running()).await;
    fake.look(LIMIT).await.unwrap();
}

#[tokio::test]
async fn a_dropped_client_leaves_no_process() {
    let mut fake = Fake::new(GOOD);
    fake.look(LIMIT).await.unwrap();
    let process = Path::new("/proc").join(fake.pid());
    drop(fake.client);
    until("the process ends", || !process.exists()).await;
}

#[tokio::test]
async fn a_worker_is_replaced_between_looks_without_failing_one() {
    let mut fake = Fake::new(GOOD);
    fake.client.looks_per_worker = 2;
    let mut pids = vec![];
    for _ in 0..6 {
        pids.push(fake.look(LIMIT).await.unwrap());
    }
    assert!(pids[0] == pids[1] && pids[2] == pids[3] && pids[4] == pids[5]);
    assert!(pids[1] != pids[2] && pids[3] != pids[4]);
}

#[tokio::test]
async fn a_spent_worker_is_replaced_without_a_pause() {
    let mut fake = Fake::new(&GOOD.replace("false", "true"));
    let first = fake.look(LIMIT).await.unwrap();
    assert!(!fake.is_running());
    assert_ne!(fake.look(LIMIT).await.unwrap(), first);
}

#[tokio::test]
async fn an_error_of_the_cluster_is_passed_on_without_secrets_and_keeps_the_worker() {
    let script = r#"
read setup
while read question; do
  id=${question#*\"id\":}; id=${id%%,*}
  echo '{"id":'$id',"spent":false,"result":{"Err":{"reason":"auth","message":"alice:hunter2"}}}'
done
"#;
    let mut fake = Fake::with(script, &[("sasl.password", "hunter2")]);
    for _ in 0..2 {
        let error = fake.look(LIMIT).await.unwrap_err();
        assert_eq!(error.reason(), Reason::Auth);
        assert_eq!(error.to_string(), "alice:***");
    }
    assert!(fake.is_running());
}

#[tokio::test]
async fn secrets_go_through_stdin_and_not_through_arguments_or_environment() {
    // A variable that is always there, so that our password is in the environment.
    let secret = std::env::var("PATH").unwrap();
    let script = GOOD.replace("read setup", "read setup; echo \"$setup\" > $dir/setup");
    let mut fake = Fake::with(&script, &[("sasl.password", &secret)]);
    fake.look(LIMIT).await.unwrap();
    let process = Path::new("/proc").join(fake.pid());
    for name in ["cmdline", "environ"] {
        let bytes = std::fs::read(process.join(name)).unwrap();
        assert!(!String::from_utf8_lossy(&bytes).contains(&secret), "{name}");
    }
    let setup = std::fs::read_to_string(fake.dir.path().join("setup")).unwrap();
    assert!(setup.contains(&secret));
}
