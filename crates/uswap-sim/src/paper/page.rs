//! The result as a table, and as a page with plots.

use std::fmt::Write;

use super::calibration::Calibration;
use super::row::{Kind, Pair, Row};
use crate::plot;

fn number(value: f64) -> String {
    match value.abs() {
        0.0..10.0 => format!("{value:.3}"),
        10.0..1000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

fn cells(row: &Row) -> [String; 11] {
    let pair = |pair: Option<Pair>, pick: fn(Pair) -> f64| pair.map_or("-".to_owned(), |pair| number(pick(pair)));
    let way = match row.direction_is_right() {
        Some(true) => "right",
        Some(false) => "WRONG",
        None => "-",
    };
    [
        row.number.to_string(),
        row.test.to_owned(),
        row.unit.to_owned(),
        pair(row.published, |pair| pair.before),
        pair(row.published, |pair| pair.after),
        pair(row.simulated, |pair| pair.before),
        pair(row.simulated, |pair| pair.after),
        row.agreement().map_or("-".to_owned(), |agreement| format!("{agreement:.2}")),
        way.to_owned(),
        row.ours.map_or("-".to_owned(), number),
        row.kind.name().to_owned(),
    ]
}

const HEAD: [&str; 11] =
    ["row", "test", "unit", "before", "after", "sim before", "sim after", "sim/published", "way", "ours", "how"];

/// The rows as text: predicted ones first, those that a constant was fitted on apart.
pub fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    for kind in [Kind::Predicted, Kind::Fitted, Kind::NotSimulated] {
        let _ = writeln!(text, "{}", kind.name());
        let all: Vec<[String; 11]> = std::iter::once(HEAD.map(str::to_owned))
            .chain(rows.iter().filter(|row| row.kind == kind).map(cells))
            .collect();
        for line in &all {
            for (column, cell) in line.iter().enumerate() {
                let width = all.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
                let _ = match column {
                    1 | 2 | 8 | 10 => write!(text, "  {cell:<width$}"),
                    _ => write!(text, "  {cell:>width$}"),
                };
            }
            while text.ends_with(' ') {
                text.pop();
            }
            text.push('\n');
        }
        for row in rows.iter().filter(|row| row.kind == kind && !row.note.is_empty()) {
            let _ = writeln!(text, "    {}: {}", row.number, row.note);
        }
    }
    text
}

/// The rows as a page.
pub fn html(rows: &[Row]) -> String {
    let mut page = String::from(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Linux swap, published and simulated</title>\n<style>\
         body{font:15px sans-serif;max-width:70em;margin:2em auto;padding:0 1em}table{border-collapse:collapse}\
         td,th{padding:.2em .6em;border-bottom:1px solid #ccc;text-align:right}td:nth-child(2),th:nth-child(2)\
         {text-align:left}p.note{color:#555;margin:.2em 0}</style>\n<h1>Linux swap, published and simulated</h1>\n",
    );
    for (kind, about) in [
        (Kind::Predicted, "No number was fitted on these rows."),
        (Kind::Fitted, "A constant was worked out from each of these rows, so that it agrees shows nothing."),
        (Kind::NotSimulated, "Their inputs are not known."),
    ] {
        let _ = write!(page, "<h2>{}</h2><p>{about}</p><table><tr>", kind.name());
        HEAD.iter().for_each(|cell| page += &format!("<th>{cell}</th>"));
        page += "</tr>\n";
        for row in rows.iter().filter(|row| row.kind == kind) {
            page += "<tr>";
            cells(row).iter().for_each(|cell| page += &format!("<td>{}</td>", escaped(cell)));
            page += "</tr>\n";
        }
        page += "</table>\n";
        for row in rows.iter().filter(|row| row.kind == kind && !row.note.is_empty()) {
            let _ = writeln!(page, "<p class=\"note\">{}: {}</p>", row.number, escaped(&row.note));
        }
    }
    page += "<h2>Plots</h2>\n";
    for row in rows.iter().filter(|row| row.simulated.is_some()) {
        page += &plot_of(row);
    }
    page += "<h2>Constants</h2><table><tr><th>name</th><th>source</th><th>value</th><th>fitted on</th></tr>\n";
    for (name, constant) in Calibration::table().iter() {
        let rows: Vec<String> = constant.fitted_on.iter().map(u32::to_string).collect();
        let _ = writeln!(
            page,
            "<tr><td>{name}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escaped(&constant.source),
            constant.value,
            rows.join(" ")
        );
    }
    page + "</table></html>\n"
}

fn plot_of(row: &Row) -> String {
    let mut bars = Vec::new();
    for (name, pair) in [("published", row.published), ("simulated", row.simulated)] {
        if let Some(pair) = pair {
            bars.push((format!("{name}, before"), pair.before));
            bars.push((format!("{name}, after"), pair.after));
        }
    }
    bars.extend(row.ours.map(|ours| ("ours".to_owned(), ours)));
    plot::bars(&format!("{}: {} ({})", row.number, row.test, row.kind.name()), row.unit, &bars)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
