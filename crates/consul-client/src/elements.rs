//! Splits a JSON array into its elements while it is read, so that no more than one element is in memory as text.

use super::Error;

/// A splitter that cuts an array into its elements. The splitter only finds where the elements end; their reader
/// decides whether they are valid.
#[derive(Debug, Default)]
pub(super) struct Elements {
    /// The beginning of the current element.
    element: Vec<u8>,
    /// Number of open brackets, including that of the array.
    depth: usize,
    in_string: bool,
    escaped: bool,
    ended: bool,
}

impl Elements {
    /// Returns the number of bytes of the current element so far.
    pub(super) fn pending(&self) -> usize {
        self.element.len()
    }

    /// Reads on up to the end of an element, and returns the element; `None` if it does not end in these bytes.
    pub(super) fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<&[u8]>, Error> {
        if self.depth == 1 {
            self.forget();
        }
        let text = *bytes;
        let mut from = 0;
        while let Some(byte) = text.get(from) {
            if self.depth <= 1 {
                self.between(*byte)?;
                from += 1;
                if self.depth == 2 {
                    self.element.push(*byte);
                }
                continue;
            }
            let rest = text.get(from..).unwrap_or_default();
            let length = self.inside(rest);
            self.element.extend(rest.get(..length).unwrap_or_default());
            from += length;
            if self.depth == 1 {
                *bytes = text.get(from..).unwrap_or_default();
                return Ok(Some(&self.element));
            }
        }
        *bytes = &[];
        Ok(None)
    }

    /// Whether the whole array was read.
    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    fn forget(&mut self) {
        self.element.clear();
        // A long element is rare, so its memory is given back.
        self.element.shrink_to(4 << 10);
    }

    /// Takes a byte outside of all elements.
    fn between(&mut self, byte: u8) -> Result<(), Error> {
        match (byte, self.depth) {
            (b' ' | b'\t' | b'\r' | b'\n', _) | (b',', 1) => {}
            (b'[', 0) if !self.ended => self.depth = 1,
            (b']', 1) => (self.depth, self.ended) = (0, true),
            (b'{', 1) => self.depth = 2,
            _ => return Err(Error::Decode("not a list of objects".to_owned())),
        }
        Ok(())
    }

    /// Returns how many of these bytes belong to the current element, and follows their strings and brackets.
    fn inside(&mut self, bytes: &[u8]) -> usize {
        let mut position = 0;
        while let Some(byte) = bytes.get(position) {
            if self.in_string && !self.escaped {
                // Values are long, so the search skips to the next special byte.
                let rest = bytes.get(position..).unwrap_or_default();
                let Some(found) = memchr::memchr2(b'"', b'\\', rest) else {
                    return bytes.len();
                };
                position += found;
                match rest.get(found) {
                    Some(b'"') => self.in_string = false,
                    _ => self.escaped = true,
                }
                position += 1;
                continue;
            }
            position += 1;
            if self.escaped {
                self.escaped = false;
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth -= 1,
                _ => {}
            }
            if self.depth == 1 {
                break;
            }
        }
        position
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the elements of a text that comes in parts of this length.
    fn cut(text: &[u8], part: usize) -> Result<Vec<Vec<u8>>, Error> {
        let mut elements = Elements::default();
        let mut all = Vec::new();
        for mut part in text.chunks(part) {
            while let Some(element) = elements.next(&mut part)? {
                all.push(element.to_vec());
            }
        }
        if elements.ended() {
            Ok(all)
        } else {
            Err(Error::Decode("cut off".to_owned()))
        }
    }

    proptest! {
        /// Whatever is in the objects, and however the text comes, each is found as it was written.
        #[test]
        fn each_object_is_found_however_the_text_comes(
            values in prop::collection::vec((hostile::text(), hostile::json()), 0..5),
            part in 1_usize..40,
            gap in "[ \n]{0,2}",
        ) {
            let objects: Vec<_> = values
                .into_iter()
                .map(|(name, value)| {
                    let name = serde_json::to_string(&name).unwrap();
                    format!("{{{name}:{value}}}")
                })
                .filter(|object| serde_json::from_str::<serde_json::Value>(object).is_ok())
                .collect();
            let text = format!("{gap}[{gap}{}{gap}]{gap}", objects.join(","));
            let found = cut(text.as_bytes(), part).unwrap();
            prop_assert_eq!(found, objects.iter().map(|object| object.as_bytes().to_vec()).collect::<Vec<_>>());
        }

        #[test]
        fn any_bytes_are_cut_or_refused(bytes in hostile::bytes(), part in 1_usize..9) {
            let _ = cut(&bytes, part);
        }
    }

    #[test]
    fn what_is_cut_off_or_no_list_of_objects_is_no_list() {
        for text in [
            "",
            "[",
            "[{}",
            r#"[{"a":"]}"#,
            "{}",
            "[1]",
            "[]]",
            "[][]",
            "null",
            "[[]]",
        ] {
            assert!(cut(text.as_bytes(), 3).is_err(), "{text}");
        }
        assert_eq!(cut(b" [ ] ", 1), Ok(Vec::new()));
    }
}
