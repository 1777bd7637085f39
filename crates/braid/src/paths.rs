//! `braid paths`: the path cache.

use braid_daemon::report::{DestinationReport, PathReport, PathsReport};
use braid_host::config::Paint;
use braid_host::run_dir::RunDir;

use crate::cli::Output;
use crate::show::{seconds, share, tenths};
use crate::table::{Cell, NO_VALUE, Side, Table};
use crate::terminal::answer_either;
use crate::{CommandError, ask};

const COLUMNS: [(&str, Side); 7] = [
    ("UPLINK", Side::Left),
    ("RTT ms", Side::Right),
    ("AGE s", Side::Right),
    ("PACKETS", Side::Right),
    ("LOSS %", Side::Right),
    ("1 MB ms", Side::Right),
    ("VALID", Side::Left),
];

/// Shows the whole path cache.
pub fn paths(run_dir: &RunDir, output: Output) -> Result<(), CommandError> {
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
    for DestinationReport { network, paths } in &report.destinations {
        for path in paths {
            let mut cells = vec![network.as_str().into()];
            cells.extend(row(path));
            table.row(cells);
        }
    }
    table.render(paint)
}

/// Renders the cached paths to one network.
pub fn of_destination(paths: &[PathReport], paint: Paint) -> String {
    let mut table = Table::new(&COLUMNS);
    paths.iter().for_each(|path| table.row(row(path)));
    table.render(paint)
}

fn row(path: &PathReport) -> Vec<Cell> {
    let loss = (path.data_packets > 0)
        .then(|| f64::from(path.lost_packets) / f64::from(path.data_packets));
    let predicted = path.predicted_ms;
    vec![
        path.uplink.as_str().into(),
        tenths(path.rtt_ms).into(),
        seconds(path.age_ms).into(),
        path.data_packets.to_string().into(),
        share(loss).into(),
        predicted
            .map_or_else(|| NO_VALUE.to_owned(), |ms| format!("{ms:.0}"))
            .into(),
        if path.valid { "yes" } else { "no" }.into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_a_line_for_each_uplink() {
        let way = |uplink: &str, rtt_ms, predicted_ms, valid| PathReport {
            uplink: uplink.into(),
            rtt_ms,
            age_ms: 3000,
            data_packets: 640,
            lost_packets: 16,
            predicted_ms,
            valid,
        };
        let report = PathsReport {
            destinations: vec![DestinationReport {
                network: "198.51.100.0/24".into(),
                paths: vec![
                    way("dsl", Some(21.44), Some(528.6), true),
                    way("lte", None, None, false),
                ],
            }],
        };
        let expected = "\
NETWORK          UPLINK  RTT ms  AGE s  PACKETS  LOSS %  1 MB ms  VALID
198.51.100.0/24  dsl       21.4    3.0      640     2.5      529  yes
198.51.100.0/24  lte          –    3.0      640     2.5        –  no
";
        assert_eq!(text(&report, Paint::Plain), expected);
    }
}
