//! `braid paths`: what is remembered of the ways to destinations.

use braid_daemon::config::Paint;
use braid_daemon::report::{PathReport, PathsReport, WayReport};
use braid_daemon::run_dir::RunDir;

use crate::cli::Output;
use crate::show::{seconds, share, tenths};
use crate::table::{Cell, NOTHING, Side, Table};
use crate::terminal::answer_either;
use crate::{Stop, ask};

const COLUMNS: [(&str, Side); 7] = [
    ("UPLINK", Side::Left),
    ("RTT ms", Side::Right),
    ("AGE s", Side::Right),
    ("PACKETS", Side::Right),
    ("LOSS %", Side::Right),
    ("1 MB ms", Side::Right),
    ("COUNTS", Side::Left),
];

/// Shows all that is remembered.
pub fn paths(run_dir: &RunDir, output: Output) -> Result<(), Stop> {
    let report: PathsReport = ask(run_dir, "/v1/paths")?;
    answer_either(output.json, &report, |paint| text(&report, paint))?;
    Ok(())
}

fn text(report: &PathsReport, paint: Paint) -> String {
    let columns: Vec<(&str, Side)> = [("NETWORK", Side::Left)]
        .into_iter()
        .chain(COLUMNS)
        .collect();
    let mut table = Table::new(&columns);
    for PathReport { network, ways } in &report.paths {
        for way in ways {
            let mut cells = vec![network.as_str().into()];
            cells.extend(row(way));
            table.row(cells);
        }
    }
    table.render(paint)
}

/// The ways to one network.
pub fn ways(ways: &[WayReport], paint: Paint) -> String {
    let mut table = Table::new(&COLUMNS);
    ways.iter().for_each(|way| table.row(row(way)));
    table.render(paint)
}

fn row(way: &WayReport) -> Vec<Cell> {
    let loss = (way.packets > 0).then(|| f64::from(way.lost) / f64::from(way.packets));
    let predicted = way.predicted_ms;
    vec![
        way.uplink.as_str().into(),
        tenths(way.rtt_ms).into(),
        seconds(way.age_ms).into(),
        way.packets.to_string().into(),
        share(loss).into(),
        predicted
            .map_or_else(|| NOTHING.to_owned(), |ms| format!("{ms:.0}"))
            .into(),
        if way.counts { "yes" } else { "no" }.into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_a_line_for_each_uplink() {
        let way = |uplink: &str, rtt_ms, predicted_ms, counts| WayReport {
            uplink: uplink.into(),
            rtt_ms,
            age_ms: 3000,
            packets: 640,
            lost: 16,
            predicted_ms,
            counts,
        };
        let report = PathsReport {
            paths: vec![PathReport {
                network: "198.51.100.0/24".into(),
                ways: vec![
                    way("dsl", Some(21.44), Some(528.6), true),
                    way("lte", None, None, false),
                ],
            }],
        };
        let expected = "\
NETWORK          UPLINK  RTT ms  AGE s  PACKETS  LOSS %  1 MB ms  COUNTS
198.51.100.0/24  dsl       21.4    3.0      640     2.5      529  yes
198.51.100.0/24  lte          –    3.0      640     2.5        –  no
";
        assert_eq!(text(&report, Paint::Plain), expected);
    }
}
