//! Reads `--window "SCHEDULE,duration=DURATION[,timeZone=ZONE][,limit=N]"` and `--reserve SLOTS,minPriority=N`, which
//! say when the slots of a semaphore are granted, and to whom.

use std::{str::FromStr, time::Duration};

use consul_client::clock;
use consul_semaphore::{
    Reserved, Restrictions, Seconds,
    windows::{WindowSpec, Windows},
};

use super::semaphore::{GREATEST_LIMIT, number, once};

/// The longest text that is read: a schedule, a time zone and the other words are shorter.
const LONGEST_WINDOW_TEXT: usize = 256;

/// The most windows of a semaphore.
const MOST_WINDOWS: usize = 20;

/// Text that says what is allowed for a window.
const ALLOWED_WINDOW: &str = "write SCHEDULE,duration=DURATION and, where needed, timeZone=ZONE and limit=N, with \
                              commas between them, such as \"0 22 * * 1,3,duration=6h,timeZone=Europe/Berlin\". The \
                              schedule is the five fields of cron, and may have commas of its own";

/// Text that says what is allowed for reserved slots.
const ALLOWED_RESERVE: &str = "write SLOTS,minPriority=N, such as 1,minPriority=100";

/// Reads one window. For clap's `value_parser`.
///
/// # Errors
/// The window can't be read, or never opens; the error says what is allowed.
pub(super) fn window(text: &str) -> Result<WindowSpec, String> {
    if text.len() > LONGEST_WINDOW_TEXT {
        return Err(format!(
            "it is longer than {LONGEST_WINDOW_TEXT} characters: {ALLOWED_WINDOW}"
        ));
    }
    // No schedule has an equals sign, so its commas are before the first one.
    let (schedule, words) = match text.find('=') {
        Some(equals) => match text[..equals].rfind(',') {
            Some(comma) => (&text[..comma], &text[comma + 1..]),
            None => return Err(format!("the schedule is missing: {ALLOWED_WINDOW}")),
        },
        None => return Err(format!("duration is missing: {ALLOWED_WINDOW}")),
    };
    let (mut duration, mut time_zone, mut limit) = (None, None, None);
    for part in words.split(',').map(str::trim) {
        let (word, value) = part
            .split_once('=')
            .ok_or_else(|| format!("{part:?} has no value: {ALLOWED_WINDOW}"))?;
        match word {
            "duration" => once(&mut duration, word, open_for(value), ALLOWED_WINDOW)?,
            "timeZone" => once(
                &mut time_zone,
                word,
                Ok::<_, String>(value.to_owned()),
                ALLOWED_WINDOW,
            )?,
            "limit" => once(
                &mut limit,
                word,
                number(value, GREATEST_LIMIT),
                ALLOWED_WINDOW,
            )?,
            _ => return Err(format!("{word:?} is unknown: {ALLOWED_WINDOW}")),
        }
    }
    let window = WindowSpec {
        schedule: schedule.trim().to_owned(),
        duration: duration.ok_or_else(|| format!("duration is missing: {ALLOWED_WINDOW}"))?,
        time_zone,
        limit,
    };
    let windows = Windows::new(vec![window.clone()], clock::time());
    match windows.invalid().first() {
        Some((_, why)) => Err(format!("it never opens: {why}")),
        None => Ok(window),
    }
}

/// Reads the time for which a window stays open.
fn open_for(text: &str) -> Result<Duration, String> {
    let length = Seconds::<60, 604_800>::from_str(text);
    length.map(Seconds::get).map_err(|error| error.to_string())
}

/// Reads reserved slots. For clap's `value_parser`.
///
/// # Errors
/// The reserved slots can't be read; the error says what is allowed.
pub(super) fn reserve(text: &str) -> Result<Reserved, String> {
    let (slots, word) = text
        .split_once(',')
        .ok_or_else(|| format!("minPriority is missing: {ALLOWED_RESERVE}"))?;
    let priority = word
        .trim()
        .strip_prefix("minPriority=")
        .ok_or_else(|| format!("minPriority is missing: {ALLOWED_RESERVE}"))?;
    let min_priority = priority.parse().map_err(|_error| {
        format!("minPriority: {priority:?} is not a whole number: {ALLOWED_RESERVE}")
    })?;
    let slots = number(slots.trim(), GREATEST_LIMIT);
    Ok(Reserved {
        slots: slots.map_err(|error| format!("{error}: {ALLOWED_RESERVE}"))?,
        min_priority,
    })
}

/// Returns the restrictions that the windows and the reserved slots put on a semaphore with this limit.
///
/// # Errors
/// There are too many windows, or more slots are reserved than the limit.
pub(super) fn restrictions(
    limit: u32,
    windows: Vec<WindowSpec>,
    reserved: Option<Reserved>,
) -> Result<Restrictions, String> {
    if windows.len() > MOST_WINDOWS {
        let given = windows.len();
        return Err(format!("set at most {MOST_WINDOWS} windows, not {given}"));
    }
    if let Some(reserved) = reserved.filter(|reserved| reserved.slots > limit) {
        let slots = reserved.slots;
        return Err(format!(
            "can't reserve {slots} slots, because the limit is {limit}"
        ));
    }
    Ok(Restrictions {
        windows: Windows::new(windows, clock::time()),
        reserved,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_window_is_a_schedule_and_words() {
        let all = window("0 22,23 * * 1,3,duration=1h30m,timeZone=Europe/Berlin, limit=2").unwrap();
        let expected = WindowSpec {
            schedule: "0 22,23 * * 1,3".into(),
            duration: Duration::from_mins(90),
            time_zone: Some("Europe/Berlin".into()),
            limit: Some(2),
        };
        assert_eq!(all, expected);
        let short = window("*/5 * * * *,duration=1m").unwrap();
        assert_eq!((short.time_zone, short.limit), (None, None));
    }

    #[test]
    fn reserved_slots_are_a_number_and_a_priority() {
        let reserved = reserve("2,minPriority=-5").unwrap();
        assert_eq!((reserved.slots, reserved.min_priority), (2, -5));
        assert!(restrictions(2, Vec::new(), Some(reserved)).is_ok());
        let said = restrictions(1, Vec::new(), Some(reserved)).unwrap_err();
        assert_eq!(said, "can't reserve 2 slots, because the limit is 1");
    }

    #[test]
    fn what_is_not_understood_is_answered_with_what_is_allowed() {
        let long = format!(
            "0 22 * * *,duration=1h,timeZone={}",
            "z".repeat(LONGEST_WINDOW_TEXT)
        );
        for (text, expected) in [
            ("", "duration is missing: write SCHEDULE,duration="),
            ("0 22 * * *", "duration is missing: write"),
            ("duration=6h", "the schedule is missing: write"),
            ("0 22 * * *,limit=2", "duration is missing: write"),
            ("0 22 * * *,duration=6h,", "\"\" has no value: write"),
            (
                "0 22 * * *,duration=6h,zone=UTC",
                "\"zone\" is unknown: write",
            ),
            ("0 22 * * *,duration=1s", "duration: "),
            (
                "0 22 * * *,duration=1h,duration=2h",
                "duration is named twice",
            ),
            (
                "0 22 * * *,duration=1h,limit=0",
                "limit: \"0\" is not a number from 1",
            ),
            (
                "0 22 * *,duration=1h",
                "never opens: the schedule \"0 22 * *\" is not valid",
            ),
            ("0 0 30 2 *,duration=1h", "never opens: no time"),
            (
                "0 0 * * *,duration=1h,timeZone=Mars",
                "the time zone \"Mars\" is not known",
            ),
            (&long, "longer than 256 characters: write"),
        ] {
            let said = window(text).unwrap_err();
            assert!(said.contains(expected), "{text}: {said}");
        }
        for (text, expected) in [
            ("1", "minPriority is missing: write SLOTS,minPriority=N"),
            ("1,priority=5", "minPriority is missing"),
            (
                "1,minPriority=high",
                "\"high\" is not a whole number: write",
            ),
            (
                "0,minPriority=1",
                "\"0\" is not a number from 1 to 5000: write",
            ),
        ] {
            let said = reserve(text).unwrap_err();
            assert!(said.contains(expected), "{text}: {said}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_in_few_words(text in hostile::text()) {
            for said in [window(&text).err(), reserve(&text).err()].into_iter().flatten() {
                prop_assert!(said.len() < 12 * text.len() + 1024);
            }
        }
    }
}
