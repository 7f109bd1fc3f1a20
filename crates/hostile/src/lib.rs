//! Hostile input for everything that parses outside data.
//!
//! The parsers of all crates are tested with the same texts and bodies: random ones, and those that have broken
//! programs before.

use proptest::{prelude::*, sample::select};

/// The deepest nesting that fits into a body of 512 KiB.
const DEPTH: usize = 250_000;

/// Texts with everything that a text can contain.
const TEXTS: [&str; 18] = [
    "",
    " ",
    ".",
    "..",
    ".lock",
    "a/b",
    "../../etc",
    "%2e%2e%2f",
    "a\nb",
    "2026-01-01T00:00:00Z INFO granted\r\n",
    "\u{0}",
    "\u{1b}[2J\u{1b}]0;title\u{7}",
    "\u{202e}gnp",
    "\u{2028}\u{feff}\u{fffd}",
    "18446744073709551616",
    "-9223372036854775809",
    "1e999",
    "true",
];

/// JSON values that trip up parsers.
const VALUES: [&str; 20] = [
    "null",
    "true",
    "0",
    "-0",
    "-1",
    "4294967296",
    "18446744073709551616",
    "-9223372036854775809",
    "1e999",
    "1E-400",
    "0.1000000000000000055511151231257827",
    r#""""#,
    r#""\u0000\n\u001b""#,
    r#""\ud83d\ude00""#,
    "[]",
    "[1,[2,{}]]",
    "{}",
    r#"{"":{"":""}}"#,
    r#"{"a":1,"a":2}"#,
    r#"{"Limit":1}"#,
];

/// Whole bodies that break parsers, or that two parsers read differently.
const BODIES: [&str; 20] = [
    "",
    "null",
    "[]",
    "{",
    "{}",
    "\u{feff}{}",
    r#"{"Limit":1,"Holders":{}}"#,
    r#"{"Limit":1,"Limit":2,"Holders":{}}"#,
    r#"{"Limit":1,"Holders":{"a":true},"Holders":{"b":true}}"#,
    r#"{"limit":1,"Limit":2,"holders":{"a":true},"Holders":null}"#,
    r#"{"Limit":1e0,"Holders":{}}"#,
    r#"{"Limit":99999999999999999999,"Holders":{}}"#,
    r#"{"Limit":1,"Holders":["a","a"]}"#,
    r#"{"Limit":1,"Holders":["\n\u001b[2J"]}"#,
    r#"{"Limit":1,"Holders":["../.lock"]}"#,
    r#"{"Limit":1,"Holders":{"\ud800":true}}"#,
    r#"{"cluster":"a\nb","clusterId":"","kind":"Job","namespace":"..","name":"\u0000","uid":"","semaphore":"","time":"-009999-01-02T01:59:59Z"}"#,
    r#"{"cluster":"","clusterId":"","kind":"","namespace":"","name":"","uid":"","semaphore":"","time":"9999-12-30T22:00:00.999999999Z","endless":true}"#,
    r#"[{"Key":"k","Value":"!","CreateIndex":-1,"ModifyIndex":1e99}]"#,
    r#"[{"ID":"x","Node":"n","TTL":"1e9h","LockDelay":-1,"CreateIndex":1}]"#,
];

/// Any text, or one that has broken something.
pub fn text() -> BoxedStrategy<String> {
    let long = (0..3000_usize).prop_map(|length| "x".repeat(length));
    prop_oneof![
        4 => any::<String>(),
        4 => select(&TEXTS[..]).prop_map(str::to_owned),
        1 => long,
    ]
    .boxed()
}

/// Any valid JSON, as text.
pub fn json() -> BoxedStrategy<String> {
    let leaf = prop_oneof![
        4 => select(&VALUES[..]).prop_map(str::to_owned),
        2 => text().prop_map(|text| serde_json::Value::from(text).to_string()),
        1 => "-?[1-9][0-9]{0,40}([.][0-9]{1,40})?([eE][+-]?[0-9]{1,9})?",
    ];
    leaf.prop_recursive(6, 40, 4, |inner| {
        let names = prop_oneof![Just("Limit"), Just("Holders"), Just("a"), Just("\\n")];
        let list = prop::collection::vec(inner.clone(), 0..4);
        let map = prop::collection::vec((names, inner), 0..4);
        prop_oneof![
            list.prop_map(|values| format!("[{}]", values.join(","))),
            map.prop_map(|fields| {
                let fields = fields
                    .iter()
                    .map(|(name, value)| format!("\"{name}\":{value}"));
                format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
            }),
        ]
    })
    .boxed()
}

/// Any body: JSON, almost JSON, maximal nesting, or any bytes.
pub fn bytes() -> BoxedStrategy<Vec<u8>> {
    let deep = select(&["[", r#"{"a":"#, r#"{"Limit":1,"Holders":"#][..]);
    let cut = (json(), any::<prop::sample::Index>()).prop_map(|(text, at)| {
        let mut bytes = text.into_bytes();
        bytes.truncate(at.index(bytes.len() + 1));
        bytes
    });
    prop_oneof![
        20 => any::<Vec<u8>>(),
        40 => json().prop_map(String::into_bytes),
        20 => cut,
        40 => select(&BODIES[..]).prop_map(|body| body.as_bytes().to_vec()),
        1 => deep.prop_map(|open| open.repeat(DEPTH / open.len()).into_bytes()),
    ]
    .boxed()
}
