//! Draws the model on a terminal of any size.

use braid_daemon::report::{StatusReport, UplinkReport, UplinkState};
use braid_host::config::Paint;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table};

use super::model::{FlowRow, Model, Rates};
use crate::bond;
use crate::show::{percent, tenths};
use crate::spark::spark;
use crate::table::NO_VALUE;

/// Columns of an uplink's history.
const SPARK_WIDTH: u16 = 20;
/// Maximum number of reasons shown.
const MOST_REASONS: usize = 6;
/// Maximum number of health lines shown.
const MOST_HEALTH: usize = 4;

/// Draws everything.
pub fn draw(frame: &mut Frame, model: &Model) {
    let Some(status) = &model.status else { return };
    let rows = |n: usize| Constraint::Length(u16::try_from(n).unwrap_or(u16::MAX));
    let health = health(status);
    let bond = bond(status);
    let reasons = model.reasons.len().min(MOST_REASONS);
    let areas = Layout::vertical([
        Constraint::Length(1),
        rows(status.uplinks.len() + 2),
        rows(bond.len()),
        rows(health.len()),
        Constraint::Min(3),
        rows(reasons + 1),
        Constraint::Length(1),
    ])
    .split(frame.area());
    frame.render_widget(head(model, status), areas[0]);
    uplinks(frame, areas[1], model, status);
    frame.render_widget(Paragraph::new(bond), areas[2]);
    frame.render_widget(Paragraph::new(health), areas[3]);
    flows(frame, areas[4], model, status);
    frame.render_widget(Paragraph::new(reason_lines(model)), areas[5]);
    frame.render_widget(foot(model), areas[6]);
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn head(model: &Model, status: &StatusReport) -> Paragraph<'static> {
    let totals = status
        .uplinks
        .iter()
        .map(|uplink| model.rates(&uplink.name));
    let total = totals.fold(Rates::default(), |sum, rates| Rates {
        down: sum.down + rates.down,
        up: sum.up + rates.up,
    });
    Paragraph::new(Line::from(vec![
        Span::styled(format!("braid {}", status.version), bold()),
        Span::raw(format!(
            "  policy {}  down {} up {} Mbit/s  flows {} + {} new  {:.1} MB",
            status.policy,
            megabits(total.down),
            megabits(total.up),
            status.flows.established,
            status.flows.embryonic,
            status.memory_bytes as f64 / 1e6,
        )),
    ]))
}

fn uplinks(frame: &mut Frame, area: Rect, model: &Model, status: &StatusReport) {
    let titles = [
        "UPLINK",
        "STATE",
        "RTT ms",
        "LOSS %",
        "SHARE %",
        "DOWN Mbit/s",
        "",
        "UP Mbit/s",
        "",
        "WHY",
    ];
    let widths = [
        Constraint::Min(6),
        Constraint::Length(8),
        Constraint::Length(7),
        Constraint::Length(6),
        Constraint::Length(7),
        Constraint::Length(11),
        Constraint::Length(SPARK_WIDTH),
        Constraint::Length(9),
        Constraint::Length(SPARK_WIDTH),
        Constraint::Fill(2),
    ];
    let rows = status.uplinks.iter().map(|uplink| row(model, uplink));
    let header = Row::new(titles.map(Cell::from)).style(bold());
    frame.render_widget(Table::new(rows, widths).header(header), area);
}

fn row(model: &Model, uplink: &UplinkReport) -> Row<'static> {
    let rates = model.rates(&uplink.name);
    let history = |of: fn(Rates) -> f64| {
        let figures = model.history(&uplink.name).map(of);
        spark(figures, usize::from(SPARK_WIDTH))
    };
    Row::new(vec![
        Cell::from(uplink.name.clone()),
        Cell::from(uplink.state.as_str()).style(tint(uplink.state)),
        number(tenths(uplink.rtt_ms)),
        number(tenths(uplink.loss.map(|loss| loss * 100.0))),
        number(percent(uplink.share)),
        number(megabits(rates.down)),
        Cell::from(history(|rates| rates.down)).style(Color::Cyan),
        number(megabits(rates.up)),
        Cell::from(history(|rates| rates.up)).style(Color::Magenta),
        Cell::from(uplink.why.clone()),
    ])
}

/// Renders the bond's links as `braid bond` does, and an empty line; nothing without a bond.
fn bond(status: &StatusReport) -> Vec<Line<'static>> {
    let Some(report) = &status.bond else {
        return Vec::new();
    };
    let table = bond::table(&report.links).render(Paint::Plain);
    let mut lines = vec![Line::raw(format!(
        "bond {}: {}",
        report.state.as_str(),
        report.why
    ))];
    if !report.links.is_empty() {
        lines.extend(table.lines().map(|line| Line::raw(line.to_owned())));
    }
    lines.push(Line::raw(""));
    lines
}

fn flows(frame: &mut Frame, area: Rect, model: &Model, status: &StatusReport) {
    let Some(flows) = &model.flows else {
        let many = status.flows.established + status.flows.embryonic;
        let text = format!("{many} flows: too many to list here; braid flows does");
        frame.render_widget(Paragraph::new(text), area);
        return;
    };
    let titles = [
        "PROTOCOL",
        "INNER",
        "REMOTE",
        "UPLINK",
        "STATE",
        "DOWN Mbit/s",
        "UP Mbit/s",
        "WHY",
    ];
    let widths = [
        Constraint::Length(8),
        Constraint::Fill(3),
        Constraint::Fill(3),
        Constraint::Length(8),
        Constraint::Length(11),
        Constraint::Length(11),
        Constraint::Length(9),
        Constraint::Fill(2),
    ];
    let shown = flows.iter().skip(model.skipped);
    let rows = shown.take(usize::from(area.height)).map(flow);
    let header = Row::new(titles.map(Cell::from)).style(bold());
    frame.render_widget(Table::new(rows, widths).header(header), area);
}

fn flow(row: &FlowRow) -> Row<'static> {
    let flow = &row.flow;
    Row::new(vec![
        Cell::from(flow.protocol.clone()),
        Cell::from(flow.inner.clone()),
        Cell::from(flow.remote.clone().unwrap_or_else(|| "any".to_owned())),
        Cell::from(flow.uplink.clone()),
        Cell::from(flow.state.clone()),
        number(megabits(row.rates.down)),
        number(megabits(row.rates.up)),
        Cell::from(flow.why.clone()),
    ])
}

fn health(status: &StatusReport) -> Vec<Line<'static>> {
    let style = Style::new().fg(Color::Yellow);
    let line = |text: String| Line::styled(text, style);
    let mut lines: Vec<Line> = status
        .health
        .iter()
        .take(MOST_HEALTH)
        .map(|health| line(format!("# health: {} ({})", health.text, health.code)))
        .collect();
    if let more @ 1.. = status.health.len().saturating_sub(MOST_HEALTH) {
        lines.push(line(format!(
            "# health: {more} more; braid status shows all"
        )));
    }
    lines
}

fn reason_lines(model: &Model) -> Vec<Line<'static>> {
    let mut lines = vec![Line::styled("PACKETS/s  REASON", bold())];
    let reasons = model.reasons.iter().take(MOST_REASONS);
    lines.extend(reasons.map(|(reason, rate)| Line::raw(format!("{rate:>9.0}  {reason}"))));
    lines
}

fn foot(model: &Model) -> Paragraph<'static> {
    match &model.trouble {
        Some(trouble) => {
            let text = format!("no answer: {trouble}");
            Paragraph::new(text).style(Style::new().fg(Color::Red))
        }
        None => Paragraph::new(format!(
            "q quits, arrows scroll; every {} s",
            model.every.as_secs_f64()
        ))
        .style(Style::new().add_modifier(Modifier::DIM)),
    }
}

fn number(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).alignment(Alignment::Right))
}

fn megabits(bits: f64) -> String {
    match bits {
        0.0 => NO_VALUE.to_owned(),
        bits => format!("{:.2}", bits / 1e6),
    }
}

fn tint(state: UplinkState) -> Style {
    match state {
        UplinkState::Up => Style::new().fg(Color::Green),
        UplinkState::Degraded => Style::new().fg(Color::Yellow),
        UplinkState::Standby | UplinkState::Paused => Style::new(),
        UplinkState::Portal | UplinkState::Dead | UplinkState::Down => Style::new().fg(Color::Red),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::model::tests::model;
    use braid_host::user_error::UserError;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::time::Duration;

    /// Returns the terminal's text without trailing blanks.
    fn drawn(model: &Model, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, model)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y| {
            let cells = (0..width).map(|x| buffer[(x, y)].symbol());
            cells.collect::<String>().trim_end().to_owned() + "\n"
        };
        (0..height).map(line).collect()
    }

    #[test]
    fn everything_is_on_a_wide_terminal() {
        let text = drawn(&model(), 140, 16);
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/top/wide.txt");
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        assert_eq!(text, std::fs::read_to_string(path).unwrap());
    }

    #[test]
    fn the_links_of_a_bond_are_among_it() {
        let mut model = model();
        let status = model.status.as_mut().unwrap();
        status.bond = Some(bond::tests::report());
        let text = drawn(&model, 140, 24);
        assert!(text.contains("bond up: the hub answers"), "{text}");
        assert!(text.contains("lte   suspect"), "{text}");
    }

    #[test]
    fn no_terminal_is_too_small() {
        let mut model = model();
        for width in 0..40 {
            for height in 0..14 {
                drawn(&model, width, height);
            }
        }
        model.flows = None;
        drawn(&model, 1, 1);
        drawn(&Model::new(Duration::from_secs(1)), 80, 24);
    }

    #[test]
    fn a_daemon_that_is_away_is_said_and_the_last_look_stays() {
        let mut model = model();
        model.lost(UserError::new(
            "not-up",
            "no daemon at /run/braid/braid.sock",
        ));
        let text = drawn(&model, 100, 20);
        assert!(text.contains("no answer: no daemon at"), "{text}");
        assert!(text.contains("dsl"), "{text}");
    }
}
