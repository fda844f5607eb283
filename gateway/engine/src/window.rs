//! Windows of budgets. Both planes use this module, so that a gateway and the
//! control plane assign a request to the same window.

use std::convert::Infallible;

use fastllm_contract::{Budget, Timestamp, WindowLength};
use jiff::ToSpan;
use jiff::civil::{Date, Time};
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};

/// The longest accepted time zone name, in bytes.
const MAX_NAME: usize = 64;

const DAY_MICROS: i64 = 24 * 60 * 60 * 1_000_000;

/// A time zone that is not in the bundled database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the time zone is unknown; an IANA name like Europe/Berlin is needed")]
pub struct UnknownTimeZone;

/// From `start` on, and before `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Its first microsecond.
    pub start: Timestamp,
    /// The first microsecond after it.
    pub end: Timestamp,
}

impl Span {
    const ALWAYS: Self = Self {
        start: Timestamp(i64::MIN),
        end: Timestamp(i64::MAX),
    };

    /// Whether a moment lies in it.
    pub fn contains(&self, at: Timestamp) -> bool {
        self.start <= at && at < self.end
    }
}

/// The sequence of windows of a budget. Cheap to clone.
///
/// Invariant: the windows of one budget tile time, without gap or overlap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window(Recurrence);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Recurrence {
    /// Consecutive windows of fixed length in microseconds, counted from a
    /// moment.
    Fixed { origin: Timestamp, micros: i64 },
    /// From midnight to midnight in a time zone.
    Calendar { unit: Unit, zone: TimeZone },
    /// A window without end.
    Endless { origin: Timestamp },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Day,
    Week,
    Month,
}

impl Window {
    /// The windows of a budget. Uses only the bundled time zone database.
    ///
    /// # Errors
    /// The budget's time zone is not in that database.
    pub fn of(budget: &Budget) -> Result<Self, UnknownTimeZone> {
        Self::with_zone(budget, zone)
    }

    /// Like [`Window::of`], with UTC in place of an unknown time zone.
    pub fn or_utc(budget: &Budget) -> Self {
        let Ok(window) = Self::with_zone(budget, |name| {
            Ok::<_, Infallible>(zone(name).unwrap_or(TimeZone::UTC))
        });
        window
    }

    fn with_zone<E>(
        budget: &Budget,
        zone: impl FnOnce(&str) -> Result<TimeZone, E>,
    ) -> Result<Self, E> {
        let origin = budget.window_start;
        let (unit, days) = match budget.window {
            WindowLength::Daily => (Unit::Day, 1),
            WindowLength::Weekly => (Unit::Week, 7),
            WindowLength::Monthly => (Unit::Month, 30),
            WindowLength::Unknown => return Ok(Self(Recurrence::Endless { origin })),
        };
        Ok(Self(match &budget.time_zone {
            Some(name) => Recurrence::Calendar {
                unit,
                zone: zone(name)?,
            },
            None => Recurrence::Fixed {
                origin,
                micros: days * DAY_MICROS,
            },
        }))
    }

    /// The window that contains a moment, also before the first one. Outside
    /// the years -9999 to 9999, calendar windows have no bounds.
    pub fn at(&self, at: Timestamp) -> Span {
        match &self.0 {
            Recurrence::Fixed { origin, micros } => fixed(*origin, *micros, at),
            Recurrence::Calendar { unit, zone } => {
                calendar(*unit, zone, at).unwrap_or(Span::ALWAYS)
            }
            Recurrence::Endless { origin } if at < *origin => Span {
                end: *origin,
                ..Span::ALWAYS
            },
            Recurrence::Endless { origin } => Span {
                start: *origin,
                ..Span::ALWAYS
            },
        }
    }
}

/// The name of a time zone as spelled in the database; the case of the argument
/// is ignored.
///
/// # Errors
/// It is not in the database.
pub fn time_zone_name(name: &str) -> Result<String, UnknownTimeZone> {
    let zone = zone(name)?;
    zone.iana_name().map(str::to_owned).ok_or(UnknownTimeZone)
}

fn zone(name: &str) -> Result<TimeZone, UnknownTimeZone> {
    if name.len() > MAX_NAME {
        return Err(UnknownTimeZone);
    }
    TimeZoneDatabase::bundled()
        .get(name)
        .ok()
        .filter(|zone| !zone.is_unknown())
        .ok_or(UnknownTimeZone)
}

fn fixed(origin: Timestamp, micros: i64, at: Timestamp) -> Span {
    let (origin, length) = (i128::from(origin.0), i128::from(micros));
    let start = origin + (i128::from(at.0) - origin).div_euclid(length) * length;
    let clamped = |moment: i128| {
        let least = moment.clamp(i128::from(i64::MIN), i128::from(i64::MAX));
        Timestamp(i64::try_from(least).unwrap_or(i64::MAX))
    };
    Span {
        start: clamped(start),
        end: clamped(start + length),
    }
}

/// `None` at the end of the calendar.
fn calendar(unit: Unit, zone: &TimeZone, at: Timestamp) -> Option<Span> {
    let moment = jiff::Timestamp::from_microsecond(at.0).ok()?;
    let mut first = unit.first(zone.to_datetime(moment).date())?;
    loop {
        let next = unit.next(first)?;
        let span = Span {
            start: midnight(zone, first)?,
            end: midnight(zone, next)?,
        };
        // If clocks go back over midnight, a date occurs twice: its first
        // midnight counts, and a later moment may still have the previous date.
        if at < span.start {
            first = unit.first(first.yesterday().ok()?)?;
        } else if at >= span.end {
            first = next;
        } else {
            return Some(span);
        }
    }
}

/// The first moment of a day, also if midnight is skipped.
fn midnight(zone: &TimeZone, date: Date) -> Option<Timestamp> {
    let wanted = zone.to_ambiguous_timestamp(date.to_datetime(Time::midnight()));
    let moment = match wanted.offset() {
        AmbiguousOffset::Gap { .. } => {
            let before = wanted.earlier().ok()?;
            zone.following(before).next()?.timestamp()
        }
        AmbiguousOffset::Unambiguous { .. } | AmbiguousOffset::Fold { .. } => {
            wanted.earlier().ok()?
        }
    };
    Some(Timestamp(moment.as_microsecond()))
}

impl Unit {
    /// The first day of the period in which a day lies.
    fn first(self, date: Date) -> Option<Date> {
        match self {
            Self::Day => Some(date),
            Self::Week => {
                let days = date.weekday().to_monday_zero_offset();
                date.checked_sub(days.days()).ok()
            }
            Self::Month => Some(date.first_of_month()),
        }
    }

    /// The first day of the period after the one that begins with a day.
    fn next(self, first: Date) -> Option<Date> {
        let length = match self {
            Self::Day => 1.day(),
            Self::Week => 1.week(),
            Self::Month => 1.month(),
        };
        first.checked_add(length).ok()
    }
}

#[cfg(test)]
mod tests;
