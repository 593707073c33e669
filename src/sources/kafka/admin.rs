//! The only file that calls librdkafka's C interface: rust-rdkafka has no safe one for the four
//! admin requests that a look needs. Everything leaves this file as plain Rust values.
//!
//! Its rules. Functions and fields that hold a `rd_kafka_resp_err_t`, a group state or a group
//! type are declared here with `i32`, because the Rust enums have gaps and a value in a gap is
//! undefined behaviour. Strings are copied before what owns them is freed, and what librdkafka
//! hands over is freed by [`Owned`]. The client itself is never destroyed (that may hang): the
//! process ends with it.

#![allow(
    unsafe_code,
    reason = "rust-rdkafka has no safe interface to these admin requests"
)]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rdkafka::bindings as sys;
use rdkafka::client::Client;
use rdkafka::config::ClientConfig;
use rdkafka::types::{RDKafka, RDKafkaType};

use super::cluster::{
    Answer, Cluster, Described, GroupState, Listed, Offsets, Reply, Request, Tag,
};
use super::failure::{Failure, Trouble};
use super::properties;
use super::{Protocol, State};
use crate::error::{Error, Reason};

/// `rd_kafka_topic_partition_t`, with the error code as the number that it is.
#[repr(C)]
struct TopicPartition {
    topic: *mut c_char,
    partition: i32,
    offset: i64,
    metadata: *mut c_void,
    metadata_size: usize,
    opaque: *mut c_void,
    err: i32,
    private: *mut c_void,
}

/// Asks for the offset that the next message will get.
const OFFSET_SPEC_LATEST: i64 = -1;

unsafe extern "C" {
    fn rd_kafka_error_code(error: *const sys::rd_kafka_error_t) -> i32;
    fn rd_kafka_event_error(event: *const sys::rd_kafka_event_t) -> i32;
    fn rd_kafka_err2str(code: i32) -> *const c_char;
    fn rd_kafka_consumer_close(client: *mut RDKafka) -> i32;
    fn rd_kafka_metadata(
        client: *mut RDKafka,
        all_topics: c_int,
        topic: *mut sys::rd_kafka_topic_t,
        metadata: *mut *mut sys::rd_kafka_metadata,
        timeout_ms: c_int,
    ) -> i32;
    fn rd_kafka_metadata_destroy(metadata: *mut sys::rd_kafka_metadata);
    fn rd_kafka_AdminOptions_set_request_timeout(
        options: *mut sys::rd_kafka_AdminOptions_t,
        timeout_ms: c_int,
        text: *mut c_char,
        text_size: usize,
    ) -> i32;
    fn rd_kafka_AdminOptions_set_broker(
        options: *mut sys::rd_kafka_AdminOptions_t,
        broker: i32,
        text: *mut c_char,
        text_size: usize,
    ) -> i32;
    fn rd_kafka_ConsumerGroupListing_state(
        group: *const sys::rd_kafka_ConsumerGroupListing_t,
    ) -> i32;
    fn rd_kafka_ConsumerGroupListing_type(
        group: *const sys::rd_kafka_ConsumerGroupListing_t,
    ) -> i32;
    fn rd_kafka_ConsumerGroupDescription_state(
        group: *const sys::rd_kafka_ConsumerGroupDescription_t,
    ) -> i32;
    fn rd_kafka_ConsumerGroupDescription_type(
        group: *const sys::rd_kafka_ConsumerGroupDescription_t,
    ) -> i32;
    /// Ends the process without running exit handlers, which would free what librdkafka's
    /// threads still use.
    safe fn _exit(status: c_int) -> !;
}

/// Ends the process at once.
pub(super) fn leave(status: i32) -> ! {
    _exit(status)
}

/// Something of librdkafka's that is ours to free.
struct Owned<T> {
    it: NonNull<T>,
    free: unsafe extern "C" fn(*mut T),
}

impl<T> Owned<T> {
    /// # Safety
    /// `it` is null, or may be freed by `free` once, by us and by nobody else.
    unsafe fn new(it: *mut T, free: unsafe extern "C" fn(*mut T)) -> Option<Self> {
        NonNull::new(it).map(|it| Owned { it, free })
    }

    fn ptr(&self) -> *mut T {
        self.it.as_ptr()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: by the contract of `new`, this is the one time that it is freed.
        unsafe { (self.free)(self.ptr()) }
    }
}

/// librdkafka's error callback, called by the thread that polls.
unsafe extern "C" fn on_error(
    _: *mut RDKafka,
    code: c_int,
    reason: *const c_char,
    opaque: *mut c_void,
) {
    // SAFETY: `Client::new` sets the opaque of the configuration to its context, a `Trouble` that
    // lives as long as the client, which outlives its callbacks; `reason` is a string or null.
    let (trouble, text) = unsafe { (opaque.cast::<Trouble>().as_ref(), text(reason)) };
    if let Some(trouble) = trouble {
        trouble.note(Failure { code, text });
    }
}

/// A Kafka client that can list, describe and read offsets, and nothing else.
pub(super) struct Librdkafka {
    client: Arc<Client<Trouble>>,
    queue: Owned<sys::rd_kafka_queue_t>,
    /// Any topic will do to ask for the brokers with.
    topic: NonNull<sys::rd_kafka_topic_t>,
    brokers: Vec<i32>,
    asked: usize,
}

impl Librdkafka {
    /// A client with these librdkafka properties. It connects by itself, later.
    ///
    /// # Errors
    /// `unsupported`, naming the property that librdkafka does not accept (and its value, unless
    /// that may be a secret).
    pub fn new(properties: &BTreeMap<String, String>) -> Result<Self, Error> {
        let client = Arc::new(connect(properties)?);
        let rk = client.native_ptr();
        let cannot = || Error::new(Reason::Worker, "librdkafka could not set up a queue");
        // SAFETY: `rk` is a live client. Closing ends the membership in a group that never began
        // and leaves the group handle in place, which an answer "not coordinator" to an offset
        // request would otherwise dereference as null. The queue is ours to free; the topic
        // handle lives as long as the client, that is, as the process.
        let (queue, topic) = unsafe {
            rd_kafka_consumer_close(rk);
            let name = c"__consumer_offsets".as_ptr();
            (
                Owned::new(sys::rd_kafka_queue_new(rk), sys::rd_kafka_queue_destroy),
                NonNull::new(sys::rd_kafka_topic_new(rk, name, ptr::null_mut())),
            )
        };
        let poller = Arc::clone(&client);
        let poll = move || {
            loop {
                // SAFETY: the client is alive as long as this thread holds it.
                unsafe { sys::rd_kafka_poll(poller.native_ptr(), 1000) };
            }
        };
        let named = thread::Builder::new().name("events".into());
        named.spawn(poll).map_err(|_| cannot())?;
        Ok(Librdkafka {
            client,
            queue: queue.ok_or_else(cannot)?,
            topic: topic.ok_or_else(cannot)?,
            brokers: vec![],
            asked: 0,
        })
    }

    fn options(
        &self,
        broker: Option<i32>,
        tag: usize,
        wait: Duration,
    ) -> Option<Owned<sys::rd_kafka_AdminOptions_t>> {
        let any = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_ANY;
        // SAFETY: the client is alive, the options are ours to free, and a null buffer for words
        // is allowed with the size 0. The opaque is only handed back to us, as a number.
        unsafe {
            let options = Owned::new(
                sys::rd_kafka_AdminOptions_new(self.client.native_ptr(), any),
                sys::rd_kafka_AdminOptions_destroy,
            )?;
            let none = ptr::null_mut();
            rd_kafka_AdminOptions_set_request_timeout(options.ptr(), millis(wait), none, 0);
            if let Some(broker) = broker {
                rd_kafka_AdminOptions_set_broker(options.ptr(), broker, none, 0);
            }
            let opaque = ptr::without_provenance_mut(tag);
            sys::rd_kafka_AdminOptions_set_opaque(options.ptr(), opaque);
            Some(options)
        }
    }
}

fn connect(properties: &BTreeMap<String, String>) -> Result<Client<Trouble>, Error> {
    let mut config = ClientConfig::new();
    for (name, value) in properties {
        config.set(name, value);
    }
    config.set_log_level(properties::log_level(properties));
    let native = config.create_native_config().map_err(properties::refusal)?;
    // SAFETY: the configuration is alive, and `on_error` has the signature that is asked for.
    unsafe { sys::rd_kafka_conf_set_error_cb(native.ptr(), Some(on_error)) };
    let kind = RDKafkaType::RD_KAFKA_CONSUMER;
    Client::new(&config, native, kind, Trouble::default()).map_err(properties::refusal)
}

impl Cluster for Librdkafka {
    fn brokers(&mut self, wait: Duration) -> Result<Vec<i32>, Failure> {
        let mut metadata = ptr::null_mut();
        // SAFETY: client and topic are alive; `metadata` receives what is ours to free, or stays
        // null; its `brokers` holds `broker_cnt` entries. (Asking for a topic that is named, and
        // not for "those known here", is what never creates one.)
        unsafe {
            let topic = self.topic.as_ptr();
            let client = self.client.native_ptr();
            let code = rd_kafka_metadata(client, 0, topic, &mut metadata, millis(wait));
            let metadata = Owned::new(metadata, rd_kafka_metadata_destroy);
            match metadata {
                Some(metadata) if code == 0 => {
                    let metadata = &*metadata.ptr();
                    let count = usize::try_from(metadata.broker_cnt).unwrap_or(0);
                    let brokers = slice(metadata.brokers.cast_const(), count);
                    self.brokers = brokers.iter().map(|broker| broker.id).collect();
                    Ok(self.brokers.clone())
                }
                _ => Err(failure(code)),
            }
        }
    }

    fn id(&self) -> Option<String> {
        self.client.fetch_cluster_id(Duration::ZERO)
    }

    fn last_brokers(&self) -> Vec<i32> {
        self.brokers.clone()
    }

    fn ask(&mut self, broker: Option<i32>, request: &Request<'_>, wait: Duration) -> Tag {
        self.asked += 1;
        let tag = Tag(self.asked);
        let Some(options) = self.options(broker, self.asked, wait) else {
            return tag;
        };
        let (rk, options, queue) = (self.client.native_ptr(), options.ptr(), self.queue.ptr());
        // SAFETY: client, options and queue are alive; librdkafka copies every argument before
        // these functions return, so that ours may be freed after.
        unsafe {
            match request {
                Request::Groups => sys::rd_kafka_ListConsumerGroups(rk, options, queue),
                Request::Members(group) => {
                    let mut ids = [group.as_ptr()];
                    sys::rd_kafka_DescribeConsumerGroups(rk, ids.as_mut_ptr(), 1, options, queue);
                }
                Request::Offsets(group) => {
                    let asked =
                        sys::rd_kafka_ListConsumerGroupOffsets_new(group.as_ptr(), ptr::null());
                    let free = sys::rd_kafka_ListConsumerGroupOffsets_destroy;
                    if let Some(asked) = Owned::new(asked, free) {
                        let mut one = [asked.ptr()];
                        let one = one.as_mut_ptr();
                        sys::rd_kafka_ListConsumerGroupOffsets(rk, one, 1, options, queue);
                    }
                }
                Request::Ends(partitions) => {
                    if let Some(list) = ends_wanted(partitions) {
                        sys::rd_kafka_ListOffsets(rk, list.ptr(), options, queue);
                    }
                }
            }
        }
        tag
    }

    fn next(&mut self, wait: Duration) -> Option<(Tag, Reply)> {
        // SAFETY: the queue is alive; the event is ours to free, and freed after it was read.
        unsafe {
            let event = sys::rd_kafka_queue_poll(self.queue.ptr(), millis(wait));
            let event = Owned::new(event, sys::rd_kafka_event_destroy)?;
            let tag = Tag(sys::rd_kafka_event_opaque(event.ptr()).addr());
            Some((tag, read(event.ptr())))
        }
    }

    fn trouble(&self) -> Option<Error> {
        self.client.context().last()
    }

    fn all_is_well(&mut self) {
        self.client.context().forget();
    }
}

fn ends_wanted(
    partitions: &[(String, i32)],
) -> Option<Owned<sys::rd_kafka_topic_partition_list_t>> {
    let size = c_int::try_from(partitions.len()).ok()?;
    // SAFETY: the list is ours to free; `add` copies the name and returns an element of the list,
    // which has the layout of `TopicPartition`, or null.
    unsafe {
        let list = Owned::new(
            sys::rd_kafka_topic_partition_list_new(size),
            sys::rd_kafka_topic_partition_list_destroy,
        )?;
        for (topic, partition) in partitions {
            let topic = CString::new(topic.as_str()).ok()?;
            let added =
                sys::rd_kafka_topic_partition_list_add(list.ptr(), topic.as_ptr(), *partition);
            if let Some(added) = added.cast::<TopicPartition>().as_mut() {
                added.offset = OFFSET_SPEC_LATEST;
            }
        }
        Some(list)
    }
}

/// # Safety
/// `event` is a live event of the queue that the admin requests answer to.
unsafe fn read(event: *mut sys::rd_kafka_event_t) -> Reply {
    // SAFETY: each `…_result` function returns null for an event of another kind, and each reader
    // copies what it keeps, while the caller holds the event.
    unsafe {
        let code = rd_kafka_event_error(event);
        if code != 0 {
            return Err(failure(code));
        }
        if let Some(it) = sys::rd_kafka_event_ListConsumerGroups_result(event).as_ref() {
            return Ok(read_listing(it));
        }
        if let Some(it) = sys::rd_kafka_event_DescribeConsumerGroups_result(event).as_ref() {
            return read_description(it);
        }
        if let Some(it) = sys::rd_kafka_event_ListConsumerGroupOffsets_result(event).as_ref() {
            return read_offsets(it);
        }
        match sys::rd_kafka_event_ListOffsets_result(event).as_ref() {
            Some(it) => Ok(read_ends(it)),
            None => Err(unreadable()),
        }
    }
}

fn read_listing(result: &sys::rd_kafka_ListConsumerGroups_result_t) -> Answer {
    let (mut groups, mut errors) = (0, 0);
    // SAFETY: both arrays belong to the result, hold as many pointers as the counts say, and live
    // as long as it does.
    unsafe {
        let listed = sys::rd_kafka_ListConsumerGroups_result_valid(result, &mut groups);
        let failed = sys::rd_kafka_ListConsumerGroups_result_errors(result, &mut errors);
        Answer::Groups(
            slice(listed, groups)
                .iter()
                .map(|&group| Listed {
                    id: CStr::from_ptr(sys::rd_kafka_ConsumerGroupListing_group_id(group))
                        .to_owned(),
                    simple: sys::rd_kafka_ConsumerGroupListing_is_simple_consumer_group(group) != 0,
                    state: state(rd_kafka_ConsumerGroupListing_state(group)),
                    protocol: protocol(rd_kafka_ConsumerGroupListing_type(group)),
                })
                .collect(),
            slice(failed, errors)
                .iter()
                .filter_map(|&error| told(error))
                .collect(),
        )
    }
}

fn read_description(result: &sys::rd_kafka_DescribeConsumerGroups_result_t) -> Reply {
    let mut count = 0;
    // SAFETY: as above; the one group is never null, and its assignor is a string or null.
    unsafe {
        let groups = sys::rd_kafka_DescribeConsumerGroups_result_groups(result, &mut count);
        let &[group] = slice(groups, count) else {
            return Err(unreadable());
        };
        if let Some(failure) = told(sys::rd_kafka_ConsumerGroupDescription_error(group)) {
            return Err(failure);
        }
        let members = sys::rd_kafka_ConsumerGroupDescription_member_count(group);
        let assignor = sys::rd_kafka_ConsumerGroupDescription_partition_assignor(group);
        Ok(Answer::Members(Described {
            simple: sys::rd_kafka_ConsumerGroupDescription_is_simple_consumer_group(group) != 0,
            state: state(rd_kafka_ConsumerGroupDescription_state(group)),
            protocol: protocol(rd_kafka_ConsumerGroupDescription_type(group)),
            members: u32::try_from(members).unwrap_or(u32::MAX),
            assignor: text(assignor),
        }))
    }
}

fn read_offsets(result: &sys::rd_kafka_ListConsumerGroupOffsets_result_t) -> Reply {
    let mut count = 0;
    // SAFETY: as above; the list of partitions belongs to the result, too, and is null when the
    // request failed.
    unsafe {
        let groups = sys::rd_kafka_ListConsumerGroupOffsets_result_groups(result, &mut count);
        let &[group] = slice(groups, count) else {
            return Err(unreadable());
        };
        if let Some(failure) = told(sys::rd_kafka_group_result_error(group)) {
            return Err(failure);
        }
        let mut offsets = Offsets::new();
        if let Some(list) = sys::rd_kafka_group_result_partitions(group).as_ref() {
            let count = usize::try_from(list.cnt).unwrap_or(0);
            for it in slice(list.elems.cast_const().cast::<TopicPartition>(), count) {
                if it.err != 0 {
                    return Err(failure(it.err));
                }
                // Below 0: no commit.
                if it.offset >= 0 {
                    let topic = offsets.entry(text(it.topic)).or_default();
                    topic.insert(it.partition, it.offset);
                }
            }
        }
        Ok(Answer::Offsets(offsets))
    }
}

fn read_ends(result: &sys::rd_kafka_ListOffsets_result_t) -> Answer {
    let mut count = 0;
    // SAFETY: as above; each entry holds one partition with its name.
    unsafe {
        let infos = sys::rd_kafka_ListOffsets_result_infos(result, &mut count);
        let read = |&info: &*const sys::rd_kafka_ListOffsetsResultInfo_t| {
            let it = &*sys::rd_kafka_ListOffsetsResultInfo_topic_partition(info)
                .cast::<TopicPartition>();
            let end = match it.err {
                0 if it.offset >= 0 => Ok(it.offset),
                // What librdkafka leaves where a leader did not answer.
                0 => Err(Failure::timed_out("the leader did not answer in time")),
                code => Err(failure(code)),
            };
            (text(it.topic), it.partition, end)
        };
        Answer::Ends(slice(infos, count).iter().map(read).collect())
    }
}

/// # Safety
/// `first` is null, or points to `count` values that live and do not change for `'a`.
unsafe fn slice<'a, T>(first: *const T, count: usize) -> &'a [T] {
    if first.is_null() {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(first, count) }
}

/// # Safety
/// `it` is null, or a string that ends in a zero.
unsafe fn text(it: *const c_char) -> String {
    if it.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(it) }.to_string_lossy().into_owned()
}

/// # Safety
/// `error` is null, or a live error.
unsafe fn told(error: *const sys::rd_kafka_error_t) -> Option<Failure> {
    if error.is_null() {
        return None;
    }
    // SAFETY: the caller's promise; the words are copied.
    let (code, mut words) = unsafe {
        let words = sys::rd_kafka_error_string(error);
        (rd_kafka_error_code(error), text(words))
    };
    // Kafka often sends the code alone.
    if words.is_empty() || words.ends_with(": ") {
        words += &failure(code).text;
    }
    Some(Failure { code, text: words })
}

/// A bare code, with librdkafka's words for it.
fn failure(code: i32) -> Failure {
    // SAFETY: it takes any number, and returns a string that lives for ever (for an unlisted code
    // one that the next such call of this thread overwrites, and that is copied here).
    let text = unsafe { text(rd_kafka_err2str(code)) };
    Failure { code, text }
}

fn unreadable() -> Failure {
    failure(super::failure::code::BAD_MSG)
}

fn state(number: i32) -> GroupState {
    match number {
        1 => Some(State::PreparingRebalance),
        2 => Some(State::CompletingRebalance),
        3 => Some(State::Stable),
        4 => Some(State::Dead),
        5 => Some(State::Empty),
        _ => None,
    }
}

fn protocol(number: i32) -> Option<Protocol> {
    match number {
        1 => Some(Protocol::Consumer),
        2 => Some(Protocol::Classic),
        _ => None,
    }
}

fn millis(time: Duration) -> c_int {
    c_int::try_from(time.as_millis()).unwrap_or(c_int::MAX)
}

#[cfg(test)]
mod tests;
