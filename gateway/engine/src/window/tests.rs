use fastllm_contract::{BudgetId, Tokens};
use proptest::prelude::*;

use super::*;

fn moment(text: &str) -> Timestamp {
    Timestamp(text.parse::<jiff::Timestamp>().unwrap().as_microsecond())
}

fn written(at: Timestamp) -> String {
    jiff::Timestamp::from_microsecond(at.0).unwrap().to_string()
}

fn window(length: WindowLength, time_zone: Option<&str>, start: Timestamp) -> Window {
    Window::of(&Budget {
        id: BudgetId(1),
        tokens_total: Some(Tokens(1)),
        cost_total_micros: None,
        window: length,
        time_zone: time_zone.map(str::to_owned),
        window_start: start,
    })
    .unwrap()
}

#[track_caller]
fn check(window: &Window, at: &str, start: &str, end: &str) {
    let span = window.at(moment(at));
    assert_eq!(
        (written(span.start), written(span.end)),
        (start.to_owned(), end.to_owned()),
        "at {at}"
    );
}

#[track_caller]
fn check_day(zone: &str, at: &str, start: &str, end: &str) {
    let window = window(WindowLength::Daily, Some(zone), Timestamp(0));
    check(&window, at, start, end);
}

#[test]
fn fixed_windows_are_consecutive() {
    let start = moment("2026-03-01T10:30:00Z");
    let day = window(WindowLength::Daily, None, start);
    check(
        &day,
        "2026-03-01T10:30:00Z",
        "2026-03-01T10:30:00Z",
        "2026-03-02T10:30:00Z",
    );
    check(
        &day,
        "2026-03-29T10:29:59.999999Z",
        "2026-03-28T10:30:00Z",
        "2026-03-29T10:30:00Z",
    );
    check(
        &day,
        "2026-03-01T10:29:59.999999Z",
        "2026-02-28T10:30:00Z",
        "2026-03-01T10:30:00Z",
    );
    check(
        &window(WindowLength::Weekly, None, start),
        "2026-03-20T00:00:00Z",
        "2026-03-15T10:30:00Z",
        "2026-03-22T10:30:00Z",
    );
    check(
        &window(WindowLength::Monthly, None, start),
        "2026-02-01T00:00:00Z",
        "2026-01-30T10:30:00Z",
        "2026-03-01T10:30:00Z",
    );
}

#[test]
fn a_day_may_have_23_or_25_hours() {
    check_day(
        "Europe/Berlin",
        "2026-03-29T12:00:00Z",
        "2026-03-28T23:00:00Z",
        "2026-03-29T22:00:00Z",
    );
    check_day(
        "Europe/Berlin",
        "2026-10-25T12:00:00Z",
        "2026-10-24T22:00:00Z",
        "2026-10-25T23:00:00Z",
    );
}

#[test]
fn skipped_midnight_is_replaced_by_the_next_moment() {
    // From 00:00 to 01:00.
    check_day(
        "Africa/Cairo",
        "2026-04-24T12:00:00Z",
        "2026-04-23T22:00:00Z",
        "2026-04-24T21:00:00Z",
    );
    check_day(
        "America/Santiago",
        "2026-09-06T03:59:59Z",
        "2026-09-05T04:00:00Z",
        "2026-09-06T04:00:00Z",
    );
    // From 23:30 to 00:30.
    check_day(
        "America/Toronto",
        "1919-03-31T12:00:00Z",
        "1919-03-31T04:30:00Z",
        "1919-04-01T04:00:00Z",
    );
    // A whole day is missing.
    check_day(
        "Pacific/Apia",
        "2011-12-30T09:59:59Z",
        "2011-12-29T10:00:00Z",
        "2011-12-30T10:00:00Z",
    );
    check_day(
        "Pacific/Apia",
        "2011-12-30T10:00:00Z",
        "2011-12-30T10:00:00Z",
        "2011-12-31T10:00:00Z",
    );
}

#[test]
fn first_of_two_midnights_counts() {
    // From 01:00 back to 00:00.
    check_day(
        "America/Havana",
        "2023-11-05T05:30:00Z",
        "2023-11-05T04:00:00Z",
        "2023-11-06T05:00:00Z",
    );
    // From 00:00 back to 23:00.
    check_day(
        "America/Santiago",
        "2026-04-05T03:30:00Z",
        "2026-04-04T03:00:00Z",
        "2026-04-05T04:00:00Z",
    );
    // From 00:01 back to 23:01, the day before.
    check_day(
        "America/St_Johns",
        "2006-10-29T02:45:00Z",
        "2006-10-29T02:30:00Z",
        "2006-10-30T03:30:00Z",
    );
}

#[test]
fn weeks_start_on_monday_and_months_on_the_first() {
    let week = window(WindowLength::Weekly, Some("Europe/Berlin"), Timestamp(0));
    check(
        &week,
        "2026-03-29T21:59:59Z",
        "2026-03-22T23:00:00Z",
        "2026-03-29T22:00:00Z",
    );
    check(
        &week,
        "2026-03-29T22:00:00Z",
        "2026-03-29T22:00:00Z",
        "2026-04-05T22:00:00Z",
    );
    let month = window(WindowLength::Monthly, Some("UTC"), Timestamp(0));
    check(
        &month,
        "2028-02-29T23:00:00Z",
        "2028-02-01T00:00:00Z",
        "2028-03-01T00:00:00Z",
    );
    check(
        &month,
        "2026-12-31T23:59:59Z",
        "2026-12-01T00:00:00Z",
        "2027-01-01T00:00:00Z",
    );
}

#[test]
fn unknown_window_length_never_ends() {
    let start = moment("2026-03-01T00:00:00Z");
    let endless = window(WindowLength::Unknown, Some("Europe/Berlin"), start);
    assert_eq!(endless.at(start).start, start);
    assert_eq!(
        endless.at(moment("9000-01-01T00:00:00Z")),
        endless.at(start)
    );
    assert_eq!(endless.at(Timestamp(start.0 - 1)).end, start);
}

#[test]
fn time_zone_names_are_canonical() {
    assert_eq!(time_zone_name("europe/BERLIN").unwrap(), "Europe/Berlin");
    assert_eq!(time_zone_name("UTC").unwrap(), "UTC");
    for wrong in ["", "Etc/Unknown", "Mars/Olympus", "+01:00", "CET-1CEST"] {
        assert_eq!(time_zone_name(wrong), Err(UnknownTimeZone), "{wrong}");
    }
}

#[test]
fn extreme_moments_have_windows() {
    for zone in [None, Some("Asia/Kolkata")] {
        let week = window(WindowLength::Weekly, zone, moment("2026-03-01T00:00:00Z"));
        for at in [i64::MIN, i64::MIN + 1, -1, 0, i64::MAX - 1] {
            assert!(week.at(Timestamp(at)).contains(Timestamp(at)), "{at}");
        }
    }
}

fn any_window() -> impl Strategy<Value = Window> {
    let lengths = prop::sample::select(vec![
        WindowLength::Daily,
        WindowLength::Weekly,
        WindowLength::Monthly,
    ]);
    let zones = prop::sample::select(vec![
        None,
        Some("UTC"),
        Some("Europe/Berlin"),
        Some("Africa/Cairo"),
        Some("America/Santiago"),
        Some("America/Havana"),
        Some("America/St_Johns"),
        Some("Australia/Lord_Howe"),
        Some("Asia/Kathmandu"),
        Some("Pacific/Apia"),
    ]);
    (lengths, zones, year_1900_to_2100())
        .prop_map(|(length, zone, start)| window(length, zone, start))
}

fn year_1900_to_2100() -> impl Strategy<Value = Timestamp> {
    let (from, to) = (
        moment("1900-01-01T00:00:00Z").0,
        moment("2100-01-01T00:00:00Z").0,
    );
    (from..to).prop_map(Timestamp)
}

proptest! {
    #[test]
    fn windows_tile_time(window in any_window(), at in year_1900_to_2100()) {
        let span = window.at(at);
        prop_assert!(span.contains(at));
        prop_assert_eq!(window.at(span.start), span);
        prop_assert_eq!(window.at(Timestamp(span.end.0 - 1)), span);
        prop_assert_eq!(window.at(span.end).start, span.end);
        prop_assert_eq!(window.at(Timestamp(span.start.0 - 1)).end, span.start);
    }
}
