//! A series of values as a row of bars.

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Renders the last `width` values. The highest is a full bar; zero is a blank.
pub fn spark(figures: impl DoubleEndedIterator<Item = f64> + Clone, width: usize) -> String {
    let highest = figures.clone().rev().take(width).fold(0.0, f64::max);
    let bar = |figure: f64| {
        if figure <= 0.0 || highest <= 0.0 {
            return ' ';
        }
        let level = (figure / highest * BARS.len() as f64).ceil() as usize;
        BARS[level.clamp(1, BARS.len()) - 1]
    };
    let mut row: Vec<char> = figures.rev().take(width).map(bar).collect();
    row.resize(width, ' ');
    row.iter().rev().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_is_full_and_nothing_is_blank() {
        let figures = [9.0, 0.0, 1.0, 4.0, 8.0];
        assert_eq!(spark(figures.into_iter(), 4), " ▁▄█");
        assert_eq!(spark(figures.into_iter(), 7), "  █ ▁▄█");
        assert_eq!(spark([].into_iter(), 3), "   ");
        assert_eq!(spark([f64::NAN, 1.0].into_iter(), 2), "▁█");
        assert_eq!(spark(figures.into_iter(), 0), "");
    }
}
