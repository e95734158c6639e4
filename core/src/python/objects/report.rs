//! Reports on shared objects, as dictionaries.

use crate::objects::kinds::Report;
use crate::objects::members::Holder;
use crate::objects::topic::{Overview, SubscriberSeen};
use crate::topic::Policy;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// Returns a report as a dictionary with the keys "kind", "amount", "size", "depth", "members", "waiters", "raw" and
/// "topic". A member is (pid, time of joining in nanoseconds, number of held permits or items), with 0 as the pid of a
/// process of another container. A topic is (publishers, subscribers), None for other kinds.
pub(crate) fn report_dict<'py>(py: Python<'py>, report: Report) -> PyResult<Bound<'py, PyDict>> {
    let members = PyList::empty(py);
    for (member, held) in report.members {
        let pid = match member.holder {
            Some(Holder::Process(pid)) => pid,
            _ => 0,
        };
        members.append((pid, member.since, held))?;
    }
    let found = PyDict::new(py);
    found.set_item("kind", report.shape.kind.word())?;
    found.set_item("amount", report.shape.amount)?;
    found.set_item("size", report.size)?;
    found.set_item("depth", report.depth)?;
    found.set_item("members", members)?;
    found.set_item("waiters", report.waiters)?;
    found.set_item("raw", report.shape.is_raw())?;
    let topic = report.topic.map(|topic| topic_report(py, topic));
    found.set_item("topic", topic.transpose()?)?;
    Ok(found)
}

/// Returns the publishers and the subscribers. A publisher is (pid, number, (messages, bytes) or None).
fn topic_report(
    py: Python<'_>,
    topic: Overview,
) -> PyResult<(Bound<'_, PyList>, Bound<'_, PyList>)> {
    let publishers = PyList::empty(py);
    for each in topic.publishers {
        publishers.append((each.pid, each.source.number(), each.published))?;
    }
    Ok((publishers, subscriber_dicts(py, topic.subscribers)?))
}

/// Returns a list with a dictionary for each subscriber, whose keys `Publisher.subscribers` describes.
pub(crate) fn subscriber_dicts(
    py: Python<'_>,
    seen: Vec<SubscriberSeen>,
) -> PyResult<Bound<'_, PyList>> {
    let found = PyList::empty(py);
    for each in seen {
        let subscriber = PyDict::new(py);
        subscriber.set_item("pid", each.pid)?;
        subscriber.set_item("lag", each.lag)?;
        subscriber.set_item("lost", each.lost)?;
        subscriber.set_item("kept", each.held)?;
        subscriber.set_item("policy", policy_name(each.policy))?;
        subscriber.set_item("number", each.number)?;
        found.append(subscriber)?;
    }
    Ok(found)
}

/// Returns the name of a policy for slow subscribers.
fn policy_name(policy: Policy) -> &'static str {
    match policy {
        Policy::Block => "block",
        Policy::KeepLast => "keep_last",
        Policy::Disconnect => "disconnect",
    }
}
