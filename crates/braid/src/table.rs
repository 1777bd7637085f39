//! Aligned tables with units in the header.

use braid_host::config::Paint;

use crate::terminal::{Tint, tinted};

/// Content of a cell without a value.
pub const NO_VALUE: &str = "–";
const GAP: &str = "  ";

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// For words.
    Left,
    /// For numbers.
    Right,
}

/// A cell.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    tint: Tint,
}

impl Cell {
    /// Returns a cell in colour.
    pub fn tinted(text: impl Into<String>, tint: Tint) -> Cell {
        Cell {
            text: text.into(),
            tint,
        }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell::tinted(text, Tint::None)
    }
}

/// A table under construction.
pub struct Table {
    columns: Vec<(&'static str, Side)>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Returns an empty table with these columns.
    pub fn new(columns: &[(&'static str, Side)]) -> Table {
        Table {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row with a cell for each column.
    pub fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// Renders the table as text, one line per row.
    pub fn render(&self, paint: Paint) -> String {
        let titles = self
            .columns
            .iter()
            .map(|(title, _)| Cell::tinted(*title, Tint::Bold));
        let titles: Vec<Cell> = titles.collect();
        let rows = || std::iter::once(&titles).chain(&self.rows);
        let width = |column: usize| {
            rows()
                .map(|row| row[column].text.chars().count())
                .max()
                .unwrap_or_default()
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let mut text = String::new();
        for row in rows() {
            let mut line = String::new();
            for ((cell, (_, side)), width) in row.iter().zip(&self.columns).zip(&widths) {
                let space = " ".repeat(width - cell.text.chars().count());
                let shown = tinted(&cell.text, cell.tint, paint);
                match side {
                    Side::Left => line.push_str(&format!("{shown}{space}{GAP}")),
                    Side::Right => line.push_str(&format!("{space}{shown}{GAP}")),
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_lean_left_and_numbers_right() {
        let mut table = Table::new(&[("UPLINK", Side::Left), ("SHARE %", Side::Right)]);
        table.row(vec!["a".into(), "5".into()]);
        table.row(vec![Cell::tinted("a-long-name", Tint::Bad), "100".into()]);
        let plain = "UPLINK       SHARE %\na                  5\na-long-name      100\n";
        assert_eq!(table.render(Paint::Plain), plain);
        assert!(
            table
                .render(Paint::Colour)
                .contains("\x1b[31ma-long-name\x1b[0m      100")
        );
    }
}
