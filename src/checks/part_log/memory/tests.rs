use super::*;

fn name(table: &str) -> Name {
    ("d".into(), table.into())
}

fn listed(table: &str, ids: &[&str]) -> Listed {
    Listed {
        name: name(table),
        ids: ids.iter().map(ToString::to_string).collect(),
        replaces: true,
    }
}

fn entry(id: u64, at: i64, event: Event, rows: u64) -> Entry {
    Entry { id, at, event, rows, part: id, read: Read::Rows(0) }
}

fn written(id: u64, at: i64, rows: u64) -> Entry {
    entry(id, at, Event::Written, rows)
}

fn merged(id: u64, at: i64, rows: u64, read: Read) -> Entry {
    Entry { read, ..entry(id, at, Event::Merged, rows) }
}

fn batch(entries: Vec<Entry>) -> [Batch; 1] {
    [Batch { table: name("t"), shared: false, entries }]
}

/// A memory that has seen the table `t` and the log up to 1000.
fn memory() -> Memory {
    let mut memory = Memory::default();
    memory.look_at(vec![listed("t", &["u"])]);
    assert_eq!(memory.from(1000), 880);
    memory.take_in(&[], 1000);
    memory.show().for_each(drop);
    memory
}

fn counts(memory: &mut Memory) -> Counts {
    memory.look_at(vec![listed("t", &["u"])]);
    let (_, counts, _) = memory.show().next().unwrap();
    counts
}

#[test]
fn what_the_log_held_before_is_not_counted_and_what_was_late_is() {
    let mut memory = Memory::default();
    memory.look_at(vec![listed("t", &["u"])]);
    memory.take_in(&batch(vec![written(1, 990, 5)]), 1000);
    assert_eq!(memory.from(1060), 880);
    memory.take_in(&batch(vec![written(1, 990, 5), written(2, 995, 70)]), 1060);
    counts(&mut memory);
    assert_eq!(counts(&mut memory).written, 70);
}

#[test]
fn each_row_counts_once_however_often_it_is_read() {
    let mut memory = memory();
    for to in (1060..1600).step_by(60) {
        assert_eq!(memory.from(to), to - 180);
        let again = [written(1, 1050, 5), written(2, 1170, 70)];
        let seen = again.into_iter().filter(|e| e.at >= to - 180 && e.at <= to);
        memory.take_in(&batch(seen.collect()), to);
    }
    assert_eq!(counts(&mut memory).written, 75);
    assert!(memory.seen.is_empty(), "it does not grow");
}

#[test]
fn each_kind_of_row_has_its_counter() {
    let mut memory = memory();
    memory.take_in(
        &batch(vec![
            entry(1, 1010, Event::Written, 100),
            entry(2, 1010, Event::Deduplicated, 20),
            entry(3, 1010, Event::Failed, 3),
            entry(4, 1010, Event::Other, 5000),
            merged(5, 1010, 60, Read::Rows(100)),
        ]),
        1060,
    );
    let counts = counts(&mut memory);
    let expected = Counts { written: 100, deduplicated: 20, failed: 3, healed: 40 };
    assert_eq!(counts, expected);
}

#[test]
fn a_small_step_back_of_the_clock_loses_nothing_and_counts_nothing_twice() {
    let mut memory = memory();
    memory.take_in(&batch(vec![written(1, 1000, 5), written(2, 1055, 5)]), 1060);
    assert_eq!(memory.from(1000), 940, "the rest was forgotten");
    let seen = [written(1, 1000, 5), written(2, 1055, 5), written(3, 990, 70)];
    memory.take_in(&batch(seen.into()), 1000);
    assert_eq!(counts(&mut memory).written, 80);
    // The clock goes on: what was forgotten before the step is not read again.
    memory.take_in(&[], 1001);
    let from = memory.from(1060);
    let seen = [written(0, 930, 5), written(1, 1000, 5), written(2, 1055, 5), written(3, 990, 70)];
    let seen = seen.into_iter().filter(|entry| entry.at >= from);
    memory.take_in(&batch(seen.collect()), 1060);
    assert_eq!(counts(&mut memory).written, 80);
}

#[test]
fn a_step_back_of_the_clock_opens_nothing_that_was_forgotten() {
    let mut memory = memory();
    memory.take_in(&batch(vec![written(1, 900, 5)]), 1060);
    assert_eq!(memory.from(1000), 940);
    memory.take_in(&[], 1000);
    assert_eq!(memory.from(1060), 940, "and not 880");
    memory.take_in(&[], 1060);
    assert_eq!(counts(&mut memory).written, 5);
}

#[test]
fn a_log_that_was_hidden_for_long_is_news_for_its_last_hour() {
    let mut memory = Memory::default();
    memory.look_at(vec![listed("t", &["u"])]);
    memory.wait_for_log(1_000);
    memory.wait_for_log(1_060);
    assert_eq!(memory.from(1_120), 880);
    memory.wait_for_log(100_000);
    assert_eq!(memory.from(100_060), 96_400);
}

#[test]
fn a_second_that_can_not_be_read_is_left_out() {
    let mut memory = memory();
    memory.skip();
    assert_eq!(memory.from(1060), 881);
}

#[test]
fn after_a_long_step_back_of_the_clock_nothing_old_is_news() {
    let mut memory = memory();
    memory.take_in(&batch(vec![written(1, 1050, 5)]), 1060);
    memory.take_in(&batch(vec![written(2, 4000, 5)]), 4060);
    // An hour back: the entries of that hour are there again, and were forgotten.
    assert_eq!(memory.from(1080), 960);
    let seen = || vec![written(1, 1050, 5), written(2, 4000, 5), written(3, 1079, 70)];
    memory.take_in(&batch(seen()), 1080);
    assert_eq!(counts(&mut memory).written, 10);
    assert_eq!(memory.from(1140), 960);
    let mut seen = seen();
    seen.push(written(4, 1130, 600));
    memory.take_in(&batch(seen), 1140);
    assert_eq!(counts(&mut memory).written, 610, "and the next row counts");
}

#[test]
fn a_step_forward_of_the_clock_loses_nothing() {
    let mut memory = memory();
    memory.take_in(&batch(vec![written(1, 1001, 5)]), 9_000);
    memory.take_in(&batch(vec![written(2, 9_050, 70)]), 9_060);
    assert_eq!(counts(&mut memory).written, 75);
}

#[test]
fn a_table_shows_zeros_first_and_then_what_was_counted_by_then() {
    let mut memory = memory();
    let both = || vec![listed("new", &["v"]), listed("t", &["u"])];
    memory.look_at(both());
    let entries = vec![written(1, 1010, 5)];
    memory.take_in(&[Batch { table: name("new"), shared: false, entries }], 1060);
    let first: Vec<_> = memory.show().map(|(_, counts, _)| counts.written).collect();
    assert_eq!(first, [0, 0]);
    memory.look_at(both());
    let second: Vec<_> = memory.show().map(|(_, counts, _)| counts.written).collect();
    assert_eq!(second, [5, 0]);
}

#[test]
fn another_table_of_the_same_name_begins_anew_and_a_dropped_one_is_gone() {
    let mut memory = memory();
    memory.take_in(&batch(vec![written(1, 1010, 5)]), 1060);
    memory.look_at(vec![listed("t", &["other"])]);
    let entries = vec![written(2, 1070, 70)];
    memory.take_in(&batch(entries), 1120);
    assert_eq!(memory.show().next().unwrap().1.written, 0);
    assert_eq!(memory.show().next().unwrap().1.written, 70);
    memory.look_at(Vec::new());
    assert_eq!(memory.show().count(), 0);
}

#[test]
fn a_table_without_a_uuid_is_the_same_as_long_as_its_name_is_there() {
    let mut memory = memory();
    memory.take_in(&batch(vec![written(1, 1010, 5)]), 1060);
    memory.look_at(vec![listed("t", &[])]);
    assert_eq!(memory.show().next().unwrap().1.written, 5);
    // With one more replica, a table has one more uuid.
    memory.look_at(vec![listed("t", &["u"])]);
    memory.look_at(vec![listed("t", &["u", "w"])]);
    assert_eq!(memory.show().next().unwrap().1.written, 5);
}

#[test]
fn a_row_with_a_uuid_belongs_to_the_table_that_bears_it_whatever_its_name_was() {
    let memory = memory();
    assert_eq!(memory.name_of(Some("u"), name("before")), Some(name("t")));
    assert_eq!(memory.name_of(Some("dropped"), name("t")), None);
    assert_eq!(memory.name_of(None, name("t")), Some(name("t")));
    assert_eq!(memory.name_of(None, name("other")), None);
}

#[test]
fn rows_that_a_merge_read_are_those_of_its_sources_and_what_is_not_known_counts_as_nothing() {
    let mut memory = memory();
    let merge = |id, sources: &[u64]| merged(id, 1010, 100, Read::Parts(sources.into()));
    memory.learn_parts([(71, 100), (72, 100)], 1010);
    let known = batch(vec![merge(1, &[71, 72])]);
    assert!(memory.unknown_sources(&known).is_empty());
    let unknown = batch(vec![merge(2, &[71, 73]), merge(3, &[73, 74])]);
    assert_eq!(memory.unknown_sources(&unknown), BTreeSet::from([name("t")]));
    memory.take_in(&known, 1060);
    memory.take_in(&unknown, 1060);
    assert_eq!(counts(&mut memory).healed, 100, "never too many, never below zero");
    assert!(memory.unknown_sources(&unknown).is_empty(), "a counted one needs none");
}

#[test]
fn a_merge_of_several_replicas_counts_once_although_one_of_them_is_late() {
    let mut memory = memory();
    let shared = |at| {
        let entries = vec![merged(1, at, 60, Read::Rows(100))];
        [Batch { table: name("t"), shared: true, entries }]
    };
    memory.take_in(&shared(1010), 1060);
    memory.take_in(&[], 2000);
    memory.take_in(&shared(2010), 2060);
    assert_eq!(counts(&mut memory).healed, 40);
}

#[test]
fn merges_that_also_delete_make_healed_unknown() {
    let mut memory = memory();
    let merge = batch(vec![merged(1, 1010, 60, Read::Rows(100))]);
    assert_eq!(memory.shrunk(&merge), BTreeSet::from([name("t")]));
    memory.note_deletes(memory.shrunk(&merge));
    memory.take_in(&merge, 1060);
    assert!(!memory.show().next().unwrap().2);
    assert!(memory.shrunk(&merge).is_empty(), "it is not asked for again");
}

#[test]
fn parts_are_forgotten() {
    let mut memory = memory();
    memory.learn_parts([(1, 1)], 1000);
    memory.take_in(&[], 1000 + PARTS_FOR);
    assert_eq!(memory.parts.len(), 1);
    memory.take_in(&[], 1001 + PARTS_FOR);
    assert_eq!(memory.parts.len(), 0);
    memory.learn_parts((0..=MAX_PARTS as u64).map(|part| (part, 1)), 9000);
    assert_eq!(memory.parts.len(), 0, "too many");
}

#[test]
fn what_is_logged_before_the_log_can_be_read_is_not_lost() {
    let mut memory = Memory::default();
    memory.wait_for_log(1000);
    memory.wait_for_log(1060);
    assert_eq!(memory.from(1120), 880);
    memory.look_at(vec![listed("t", &["u"])]);
    memory.take_in(&batch(vec![written(1, 1070, 5)]), 1120);
    counts(&mut memory);
    assert_eq!(counts(&mut memory).written, 5);
}
