//! Reads slots of one of several semaphores: `--semaphore
//! prefix=P,limit=N[,slots=K][,key=K][,mode=MODE][,period=T][,window=(...)][,reserve=(...)]`.

use std::{fmt::Display, num::NonZeroU32, str::FromStr};

use clap::ValueEnum as _;
use consul_semaphore::{
    Key, MOST_SLOTS, Period, Prefix, Reserved, holder::SlotsOf, windows::WindowSpec,
};

use super::{
    ModeFlag,
    restrictions::{reserve, restrictions, window},
};

/// The longest text that is read: a prefix, a key and the other words are shorter.
const LONGEST_SEMAPHORE_TEXT: usize = 2048;

/// The greatest limit, which is the same as for `--limit`.
pub(super) const GREATEST_LIMIT: u32 = 5000;

/// Text that says what is allowed.
const ALLOWED_SEMAPHORE: &str = "write prefix=PREFIX,limit=N and, where needed, slots=N, key=KEY, mode=semaphore, \
                                 mode=mutex or mode=rate with period=DURATION, window=(SCHEDULE,duration=DURATION) as \
                                 for --window, reserve=(SLOTS,minPriority=N) as for --reserve, with commas between them";

/// The words of one `--semaphore` that were read so far.
#[derive(Default)]
struct SemaphoreWords {
    prefix: Option<Prefix>,
    limit: Option<u32>,
    slots: Option<u32>,
    key: Option<Key>,
    mode: Option<ModeFlag>,
    period: Option<Period>,
    windows: Vec<WindowSpec>,
    reserve: Option<Reserved>,
}

/// Reads one `--semaphore`. For clap's `value_parser`.
///
/// # Errors
/// The text can't be read; the error says what is allowed.
pub(super) fn parse(text: &str) -> Result<SlotsOf, String> {
    if text.len() > LONGEST_SEMAPHORE_TEXT {
        return Err(format!(
            "it is longer than {LONGEST_SEMAPHORE_TEXT} characters: {ALLOWED_SEMAPHORE}"
        ));
    }
    let mut words = SemaphoreWords::default();
    for part in parts(text).map(str::trim) {
        let (word, value) = part
            .split_once('=')
            .ok_or_else(|| format!("{part:?} has no value: {ALLOWED_SEMAPHORE}"))?;
        words.set(word, value)?;
    }
    words.semaphore()
}

impl SemaphoreWords {
    fn set(&mut self, word: &str, value: &str) -> Result<(), String> {
        match word {
            "prefix" => once(&mut self.prefix, word, value.parse(), ALLOWED_SEMAPHORE),
            "limit" => once(
                &mut self.limit,
                word,
                number(value, GREATEST_LIMIT),
                ALLOWED_SEMAPHORE,
            ),
            "slots" => once(
                &mut self.slots,
                word,
                number(value, MOST_SLOTS),
                ALLOWED_SEMAPHORE,
            ),
            "key" => once(&mut self.key, word, value.parse(), ALLOWED_SEMAPHORE),
            "mode" => once(&mut self.mode, word, mode(value), ALLOWED_SEMAPHORE),
            "period" => once(&mut self.period, word, value.parse(), ALLOWED_SEMAPHORE),
            "window" => {
                let window = bracketed(word, value)
                    .and_then(window)
                    .map_err(|error| format!("{word}: {error}"))?;
                self.windows.push(window);
                Ok(())
            }
            "reserve" => {
                let reserved = bracketed(word, value).and_then(reserve);
                once(&mut self.reserve, word, reserved, ALLOWED_SEMAPHORE)
            }
            _ => Err(format!("{word:?} is unknown: {ALLOWED_SEMAPHORE}")),
        }
    }

    fn semaphore(self) -> Result<SlotsOf, String> {
        let missing = |word: &str| format!("{word} is missing: {ALLOWED_SEMAPHORE}");
        let (mode, period) = self.mode.unwrap_or_default().stored(self.period)?;
        let limit = self.limit.ok_or_else(|| missing("limit"))?;
        Ok(SlotsOf {
            prefix: below(
                self.prefix.ok_or_else(|| missing("prefix"))?,
                self.key.as_ref(),
            )?,
            mode,
            period,
            limit,
            slots: self
                .slots
                .and_then(NonZeroU32::new)
                .unwrap_or(NonZeroU32::MIN),
            restrictions: restrictions(limit, self.windows, self.reserve)?,
        })
    }
}

/// Splits a text at its commas, except those in brackets.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_i32;
    text.split(move |sign| {
        depth += match sign {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        sign == ',' && depth == 0
    })
}

/// Returns the text in brackets.
fn bracketed<'a>(word: &str, text: &'a str) -> Result<&'a str, String> {
    let inside = text
        .strip_prefix('(')
        .and_then(|text| text.strip_suffix(')'));
    inside.ok_or_else(|| format!("put it in brackets, {word}=(...): {ALLOWED_SEMAPHORE}"))
}

/// Returns the prefix of a semaphore, or of one key of a semaphore.
pub(super) fn below(prefix: Prefix, key: Option<&Key>) -> Result<Prefix, String> {
    let Some(key) = key else {
        return Ok(prefix);
    };
    let below = format!("{prefix}/{key}").parse();
    below.map_err(|error| format!("prefix and key: {error}"))
}

/// Sets a word that may be given once; `allowed` says what may be written.
pub(super) fn once<T, E: Display>(
    known: &mut Option<T>,
    word: &str,
    value: Result<T, E>,
    allowed: &str,
) -> Result<(), String> {
    let value = value.map_err(|error| format!("{word}: {error}"))?;
    match known.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("{word} is named twice: {allowed}")),
    }
}

pub(super) fn number(text: &str, most: u32) -> Result<u32, String> {
    u32::from_str(text)
        .ok()
        .filter(|number| (1..=most).contains(number))
        .ok_or_else(|| format!("{text:?} is not a number from 1 to {most}"))
}

fn mode(text: &str) -> Result<ModeFlag, String> {
    let read = ModeFlag::from_str(text, false);
    read.map_err(|_| format!("{text:?} is neither semaphore, mutex nor rate"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use consul_semaphore::Restrictions;

    #[test]
    fn a_semaphore_is_written_in_words() {
        let short = parse("prefix=shared/db,limit=3").unwrap();
        assert_eq!(
            short,
            SlotsOf {
                prefix: "shared/db".parse().unwrap(),
                mode: consul_semaphore::Mode::Semaphore,
                period: None,
                limit: 3,
                slots: NonZeroU32::MIN,
                restrictions: Restrictions::default(),
            }
        );
        let all = parse("mode=semaphore, slots=2,key=customer-42, limit=3, prefix=tasks").unwrap();
        assert_eq!(all.prefix.as_str(), "tasks/customer-42");
        assert_eq!(all.slots.get(), 2);
        assert_eq!(
            parse("prefix=a,limit=1,mode=mutex").unwrap().mode,
            consul_semaphore::Mode::Mutex
        );
        let rate = parse("prefix=a,limit=9,mode=rate,period=1m").unwrap();
        assert_eq!(rate.mode, consul_semaphore::Mode::Semaphore);
        assert_eq!(rate.period, Some(std::time::Duration::from_mins(1)));
    }

    #[test]
    fn windows_and_reserved_slots_are_in_brackets() {
        let read = parse(
            "prefix=a,window=(0 22 * * 1,3,duration=6h),limit=3,reserve=(1,minPriority=100),\
             window=(0 0 * * 0,duration=24h,limit=2)",
        )
        .unwrap();
        let windows = [
            window("0 22 * * 1,3,duration=6h").unwrap(),
            window("0 0 * * 0,duration=24h,limit=2").unwrap(),
        ];
        assert_eq!(
            read.restrictions,
            restrictions(
                3,
                windows.into(),
                Some(reserve("1,minPriority=100").unwrap())
            )
            .unwrap()
        );
        for (text, expected) in [
            (
                "window=0 22 * * *",
                "window: put it in brackets, window=(...)",
            ),
            (
                "window=(0 22 * * *)",
                "window: duration is missing: write SCHEDULE",
            ),
            ("window=(0 22 * * *,duration=6h", "put it in brackets"),
            (
                "reserve=(4,minPriority=1)",
                "can't reserve 4 slots, because the limit is 3",
            ),
            (
                "reserve=(1,minPriority=1),reserve=(1,minPriority=1)",
                "named twice",
            ),
        ] {
            let said = parse(&format!("prefix=a,limit=3,{text}")).unwrap_err();
            assert!(said.contains(expected), "{text}: {said}");
        }
    }

    #[test]
    fn what_is_not_understood_is_answered_with_what_is_allowed() {
        let long = format!(
            "prefix=a,limit=1,key={}",
            "k".repeat(LONGEST_SEMAPHORE_TEXT)
        );
        let longest = format!("prefix={},key=k,limit=1", "p".repeat(Prefix::MAX_LENGTH));
        for (text, expected) in [
            ("", "has no value: write prefix=PREFIX,limit=N"),
            ("prefix=a", "limit is missing: write"),
            ("limit=1", "prefix is missing: write"),
            ("prefix=a,limit=1,", "\"\" has no value: write"),
            ("prefix=a,limit", "\"limit\" has no value"),
            ("prefix=a,limit=1,size=x", "\"size\" is unknown: write"),
            ("prefix=a,limit=1,\u{1b}[31m=x", "\"\\u{1b}[31m\" is"),
            ("prefix=a,prefix=b,limit=1", "prefix is named twice"),
            ("prefix=a//b,limit=1", "prefix: prefix \"a//b\" is"),
            ("prefix=a,limit=0", "limit: \"0\" is not a number from 1"),
            ("prefix=a,limit=5001", "from 1 to 5000"),
            ("prefix=a,limit=99999999999", "from 1 to 5000"),
            ("prefix=a,limit=9,slots=0", "slots: \"0\" is not a number"),
            ("prefix=a,limit=99,slots=51", "from 1 to 50"),
            ("prefix=a,limit=1,key=b/c", "key: a key has"),
            (
                "prefix=a,limit=1,mode=lock",
                "neither semaphore, mutex nor rate",
            ),
            ("prefix=a,limit=1,mode=rate", "a rate needs a period"),
            (
                "prefix=a,limit=1,period=1m",
                "a period is only for mode rate",
            ),
            ("prefix=a,limit=1,mode=rate,period=13h", "period: "),
            (&long, "longer than 2048 characters: write"),
            (&longest, "prefix and key: prefix"),
        ] {
            let said = parse(text).unwrap_err();
            assert!(said.contains(expected), "{text}: {said}");
            assert!(!said.contains("  "), "{said}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_in_few_words(text in hostile::text()) {
            if let Err(said) = parse(&text) {
                prop_assert!(said.len() < 12 * LONGEST_SEMAPHORE_TEXT);
            }
        }

        #[test]
        fn what_is_read_is_within_all_bounds(
            prefix in "[a-z./]{1,9}",
            limit in 0..9000_u32,
            slots in 0..90_u32,
        ) {
            if let Ok(read) = parse(&format!("prefix={prefix},limit={limit},slots={slots}")) {
                prop_assert_eq!(read.prefix.as_str(), prefix);
                prop_assert!((1..=GREATEST_LIMIT).contains(&read.limit));
                prop_assert!((1..=MOST_SLOTS).contains(&read.slots.get()));
            }
        }
    }
}
