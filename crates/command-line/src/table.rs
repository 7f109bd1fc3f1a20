//! Columns that are as wide as their widest cell.

use crate::text::{Line, Span, Tone};

/// The gap between two columns.
const COLUMN_GAP: usize = 3;

/// Rows below a heading. Columns without any content are left out.
#[derive(Clone, Debug, Default)]
pub struct Table {
    heading: Vec<&'static str>,
    rows: Vec<Vec<Span>>,
    indent: usize,
}

impl Table {
    /// A table without rows.
    pub fn new(heading: impl Into<Vec<&'static str>>) -> Self {
        Self {
            heading: heading.into(),
            ..Self::default()
        }
    }

    /// Returns the table, indented by this many columns.
    #[must_use]
    pub fn indented(self, indent: usize) -> Self {
        Self { indent, ..self }
    }

    /// Adds a row, with a cell for each column.
    pub fn row(&mut self, cells: impl Into<Vec<Span>>) {
        self.rows.push(cells.into());
    }

    /// The heading and the rows.
    pub fn lines(&self) -> Vec<Line> {
        let heading = self.heading.iter().map(|name| Span::new(Tone::Dim, name));
        let says = |column: usize| {
            let mut cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.any(|cell| !cell.is_empty())
        };
        let columns = 0..self.heading.len();
        let kept: Vec<usize> = columns.filter(|column| says(*column)).collect();
        let all: Vec<Vec<Span>> = [heading.collect()]
            .into_iter()
            .chain(self.rows.iter().cloned())
            .collect();
        let width = |column: usize| {
            let cells = all.iter().filter_map(|row| row.get(column));
            cells.map(Span::width).max().unwrap_or(0)
        };
        let widths: Vec<usize> = kept.iter().map(|column| width(*column)).collect();
        all.iter()
            .map(|row| {
                let cells = kept
                    .iter()
                    .map(|column| row.get(*column).cloned().unwrap_or_default());
                self.line(&cells.collect::<Vec<_>>(), &widths)
            })
            .collect()
    }

    /// Returns one row, without trailing spaces.
    fn line(&self, cells: &[Span], widths: &[usize]) -> Line {
        let end = cells
            .iter()
            .rposition(|cell| !cell.is_empty())
            .map_or(0, |last| last + 1);
        let mut spans = Vec::new();
        let mut before = self.indent;
        for (cell, width) in cells[..end].iter().zip(widths) {
            if before > 0 {
                spans.push(Span::plain(" ".repeat(before)));
            }
            spans.push(cell.clone());
            before = width - cell.width() + COLUMN_GAP;
        }
        Line(spans)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(table: &Table) -> Vec<String> {
        table
            .lines()
            .iter()
            .map(|line| line.render(false))
            .collect()
    }

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let mut table = Table::new(["NAME", "N", "NOTE"]);
        table.row(["a", "10", ""].map(Span::plain));
        table.row(["longer", "2", "x"].map(Span::plain));
        assert_eq!(
            shown(&table),
            ["NAME     N    NOTE", "a        10", "longer   2    x"]
        );
        let expected = "  NAME     N    NOTE";
        assert_eq!(shown(&table.indented(2))[0], expected);
    }

    #[test]
    fn a_column_that_says_nothing_is_left_out() {
        let mut table = Table::new(["A", "KEY", "B"]);
        table.row(["1", "", "2"].map(Span::plain));
        assert_eq!(shown(&table), ["A   B", "1   2"]);
    }

    #[test]
    fn wide_letters_take_two_columns() {
        let mut table = Table::new(["A", "B"]);
        table.row(["漢字", "1"].map(Span::plain));
        table.row(["abcd", "2"].map(Span::plain));
        assert_eq!(shown(&table)[1..], ["漢字   1", "abcd   2"]);
    }
}
