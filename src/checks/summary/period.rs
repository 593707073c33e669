//! Whole days and months, as a calendar and a clock see them.

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use serde::Deserialize;

use crate::error::{Error, Reason};

/// A period that is named by where it lies from today.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Period {
    Today,
    Yesterday,
    ThisMonth,
    LastMonth,
}

/// The days of a period, and the instants at which it begins and ends.
#[derive(Debug, Clone, PartialEq)]
pub struct Days {
    pub first: Date,
    /// The day after the last one.
    pub after: Date,
    pub from_epoch: i64,
    pub to_epoch: i64,
    /// The instant of asking, and its day.
    now: i64,
    today: Date,
}

impl Period {
    pub const ALL: [Period; 4] = [
        Period::Today,
        Period::Yesterday,
        Period::ThisMonth,
        Period::LastMonth,
    ];

    /// The value of the `period` label.
    pub fn as_str(self) -> &'static str {
        match self {
            Period::Today => "today",
            Period::Yesterday => "yesterday",
            Period::ThisMonth => "this_month",
            Period::LastMonth => "last_month",
        }
    }

    /// The days of this period in `zone`, at the Unix time `now`.
    ///
    /// # Errors
    /// `protocol`, when `now` is no time that a calendar knows.
    pub fn days(self, now: i64, zone: &TimeZone) -> Result<Days, Error> {
        self.try_days(now, zone).map_err(|error| {
            Error::new(Reason::Protocol, format!("the server's clock says {now}: {error}"))
        })
    }

    fn try_days(self, now: i64, zone: &TimeZone) -> Result<Days, jiff::Error> {
        let today = Timestamp::from_second(now)?.to_zoned_datetime(zone.clone()).date();
        let month = today.first_of_month();
        let (first, after) = match self {
            Period::Today => (today, today.checked_add(1.day())?),
            Period::Yesterday => (today.checked_sub(1.day())?, today),
            Period::ThisMonth => (month, month.checked_add(1.month())?),
            Period::LastMonth => (month.checked_sub(1.month())?, month),
        };
        let start_of = |day: Date| -> Result<i64, jiff::Error> {
            Ok(day.to_zoned_datetime(zone.clone())?.timestamp().as_second())
        };
        Ok(Days {
            first,
            after,
            from_epoch: start_of(first)?,
            to_epoch: start_of(after)?,
            now,
            today,
        })
    }
}

impl Days {
    /// The smallest range of days that holds both.
    pub fn hull(self, other: Days) -> Days {
        Days {
            first: self.first.min(other.first),
            after: self.after.max(other.after),
            from_epoch: self.from_epoch.min(other.from_epoch),
            to_epoch: self.to_epoch.max(other.to_epoch),
            ..self
        }
    }

    /// Share of the period, so far as it has elapsed, that lies after the Unix time `oldest`.
    pub fn coverage(&self, oldest: i64) -> f64 {
        let end = self.to_epoch.min(self.now);
        share(end - oldest.max(self.from_epoch), end - self.from_epoch)
    }

    /// Share of the period's days, today included, that lie on or after the day `oldest`.
    pub fn share_held_since(&self, oldest: Date) -> f64 {
        let tomorrow = self.today.tomorrow().unwrap_or(self.today);
        let end = self.after.min(tomorrow);
        let days = |from: Date| i64::from(from.until(end).map_or(0, |span| span.get_days()));
        share(days(oldest.max(self.first)), days(self.first))
    }
}

fn share(part: i64, whole: i64) -> f64 {
    match whole {
        ..=0 => 0.0,
        _ => (part as f64 / whole as f64).clamp(0.0, 1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::civil::date;

    /// 2026-03-15 12:00 UTC.
    const NOON: i64 = 1_773_576_000;

    fn days(period: Period, now: i64, zone: &str) -> Days {
        period.days(now, &TimeZone::get(zone).unwrap()).unwrap()
    }

    #[test]
    fn periods_are_whole_days_and_months() {
        for (period, first, after) in [
            (Period::Today, date(2026, 3, 15), date(2026, 3, 16)),
            (Period::Yesterday, date(2026, 3, 14), date(2026, 3, 15)),
            (Period::ThisMonth, date(2026, 3, 1), date(2026, 4, 1)),
            (Period::LastMonth, date(2026, 2, 1), date(2026, 3, 1)),
        ] {
            let days = days(period, NOON, "UTC");
            assert_eq!((days.first, days.after), (first, after), "{period:?}");
        }
        let today = days(Period::Today, NOON, "UTC");
        assert_eq!(today.from_epoch, NOON - 12 * 3600);
        assert_eq!(today.to_epoch, NOON + 12 * 3600);
    }

    #[test]
    fn the_day_is_the_zones_and_may_have_23_hours() {
        // At 23:30 UTC it is the next day in Lisbon's summer; the clocks went forward that day.
        let day = days(Period::Today, 1_774_747_800 + 3 * 3600, "Europe/Lisbon");
        assert_eq!(day.first, date(2026, 3, 29));
        assert_eq!(day.to_epoch - day.from_epoch, 23 * 3600);
    }

    #[test]
    fn coverage_is_the_share_of_what_has_elapsed() {
        let today = days(Period::Today, NOON, "UTC");
        assert_eq!(today.coverage(NOON - 3 * 3600), 0.25);
        assert_eq!(today.coverage(0), 1.0);
        assert_eq!(today.coverage(NOON + 1), 0.0);
        let yesterday = days(Period::Yesterday, NOON, "UTC");
        assert_eq!(yesterday.coverage(NOON - 24 * 3600), 0.5);
        assert_eq!(yesterday.coverage(NOON), 0.0);
    }

    #[test]
    fn a_raw_table_holds_the_days_since_its_oldest() {
        let month = days(Period::ThisMonth, NOON, "UTC");
        assert_eq!(month.share_held_since(date(2026, 3, 1)), 1.0);
        assert_eq!(month.share_held_since(date(2025, 1, 1)), 1.0);
        assert_eq!(month.share_held_since(date(2026, 3, 13)), 3.0 / 15.0);
        assert_eq!(month.share_held_since(date(2026, 3, 16)), 0.0);
        let today = days(Period::Today, NOON, "UTC");
        assert_eq!(today.share_held_since(date(2026, 3, 15)), 1.0);
    }
}
