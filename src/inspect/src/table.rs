//! Lines of cells as Go's `text/tabwriter` writes them with padding 2, blanks, and no flags, as the
//! published tool does. Names of Kubernetes are ASCII; Go would count a wide character as one
//! column.

use std::io::Write as _;

use mpsgate_model::printable::plain;
use tabwriter::TabWriter;

/// One cell, and its colour on a terminal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) paint: Paint,
}

/// Colours are not part of a cell's width.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Paint {
    #[default]
    Plain,
    /// Nearly full.
    High,
    /// Full.
    Full,
}

impl Cell {
    fn shown(&self, coloured: bool) -> String {
        match self.paint {
            Paint::High if coloured => format!("\x1b[33m{}\x1b[0m", self.text),
            Paint::Full if coloured => format!("\x1b[31m{}\x1b[0m", self.text),
            _ => self.text.clone(),
        }
    }
}

impl From<String> for Cell {
    /// Text of others in the cluster's objects stays text: a cell is one line, and no terminal
    /// obeys it.
    fn from(text: String) -> Self {
        Self { text: plain(&text), paint: Paint::Plain }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

/// Lines of cells; the last cell of a line may be empty.
#[derive(Debug, Default)]
pub(crate) struct Table(Vec<Vec<Cell>>);

impl Table {
    pub(crate) fn line<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.0.push(cells.into_iter().map(Into::into).collect());
    }

    /// The length of a line in bytes before layout: cells, a tab between each two, a line feed.
    pub(crate) fn bytes(line: &[Cell]) -> usize {
        line.iter().map(|cell| cell.text.len() + 1).sum()
    }

    pub(crate) fn render(&self, coloured: bool) -> String {
        let mut writer = TabWriter::new(Vec::new()).minwidth(0).padding(2).ansi(true);
        for line in &self.0 {
            let cells: Vec<String> = line.iter().map(|cell| cell.shown(coloured)).collect();
            // Writing to a Vec does not fail.
            let _ = writeln!(writer, "{}", cells.join("\t"));
        }
        String::from_utf8(writer.into_inner().unwrap_or_default()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::indexing_slicing,
        reason = "test code fails by panicking"
    )]
    use super::*;

    /// tabwriter as its documentation describes it, cell by cell: by the cells of the same column
    /// directly above and below.
    fn model(lines: &[Vec<String>]) -> String {
        let has = |line: usize, column: usize| lines[line].len() > column + 1;
        let mut text = String::new();
        for (at, line) in lines.iter().enumerate() {
            for (column, cell) in line.iter().enumerate() {
                text += cell;
                if !has(at, column) {
                    continue;
                }
                let above = (0..at).rev().take_while(|line| has(*line, column));
                let below = (at..lines.len()).take_while(|line| has(*line, column));
                let most = above.chain(below).map(|line| lines[line][column].chars().count()).max();
                text += &" ".repeat(most.unwrap() + 2 - cell.chars().count());
            }
            text += "\n";
        }
        text
    }

    fn table(lines: &[Vec<String>]) -> Table {
        let mut table = Table::default();
        lines.iter().for_each(|line| table.line(line.iter().cloned()));
        table
    }

    #[test]
    fn a_column_ends_where_a_line_lacks_it_and_the_last_cell_is_not_padded() {
        let mut table = Table::default();
        table.line(["a", "bb", "c"]);
        table.line(["aaaa", "", "c"]);
        table.line(["----------"]);
        table.line(["x", ""]);
        assert_eq!(table.render(true), "a     bb  c\naaaa      c\n----------\nx  \n");
    }

    #[test]
    fn colours_change_no_width_and_are_left_out_without_a_terminal() {
        let mut table = Table::default();
        table.line([Cell { text: "15/15".to_owned(), paint: Paint::Full }, "x".into()]);
        table.line([Cell { text: "7/15".to_owned(), paint: Paint::High }, "x".into()]);
        assert_eq!(table.render(false), "15/15  x\n7/15   x\n");
        assert_eq!(table.render(true), "\x1b[31m15/15\x1b[0m  x\n\x1b[33m7/15\x1b[0m   x\n");
    }

    #[test]
    fn a_cell_forges_no_line_and_no_terminal_obeys_it() {
        let mut table = Table::default();
        let hostile = "\u{1b}]0;pwned\u{7}\u{1b}[2J10.0.0.1\n\tFAKE ROW\u{9b}\u{202e}";
        table.line(["n", hostile, "c"]);
        assert_eq!(table.render(true), "n  �]0;pwned��[2J10.0.0.1��FAKE ROW��  c\n");
        let owned = Cell::from(hostile.to_owned());
        assert!(!owned.text.chars().any(char::is_control));
    }

    proptest::proptest! {
        #[test]
        fn every_table_is_laid_out_as_tabwriter_documents_it(
            lines in proptest::collection::vec(proptest::collection::vec("[a-zé/0-9]{0,6}", 1..6), 0..9),
        ) {
            proptest::prop_assert_eq!(table(&lines).render(true), model(&lines));
        }

        #[test]
        fn the_bytes_of_a_line_are_those_that_go_into_it(cells in proptest::collection::vec("[a-zé]{0,6}", 1..6)) {
            let line: Vec<Cell> = cells.iter().cloned().map(Cell::from).collect();
            proptest::prop_assert_eq!(Table::bytes(&line), cells.join("\t").len() + 1);
        }
    }
}
