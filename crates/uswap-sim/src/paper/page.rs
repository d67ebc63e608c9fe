//! The result as a table, and as a page with plots.

use std::fmt::Write;

use super::calibration::Calibration;
use super::row::{Kind, Pair, Row};
use crate::plot::{self, Bar};

fn number(value: f64) -> String {
    let decimals = match value.abs() {
        0.0..10.0 => 3,
        10.0..1000.0 => 1,
        _ => 0,
    };
    plot::thousands(value, decimals)
}

/// What a change that goes the other way is called.
const WRONG: &str = "WRONG";

fn cells(row: &Row) -> [String; 11] {
    let pair = |pair: Option<Pair>, pick: fn(Pair) -> f64| pair.map_or("-".to_owned(), |pair| number(pick(pair)));
    let way = match row.direction_is_right() {
        Some(true) => "right",
        Some(false) => WRONG,
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
    for kind in Kind::ALL {
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

const STYLE: &str = ":root{color-scheme:light dark}\
    body{font:15px/1.45 system-ui,sans-serif;max-width:78em;margin:2em auto;padding:0 1em}\
    .wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}\
    td,th{padding:.2em .6em;border-bottom:1px solid #8886;text-align:right;white-space:nowrap;vertical-align:top}\
    td:nth-child(2),th:nth-child(2),td:nth-child(3),th:nth-child(3){text-align:left}\
    td:nth-child(2){white-space:normal;min-width:14em}.wrong{color:#d33;font-weight:bold}\
    ul.notes{opacity:.8;padding-left:1.2em}.source td:nth-child(2){max-width:60em}\
    .plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,34em),1fr));gap:1.5em 3em}\
    figure{margin:0}figcaption{margin-bottom:.4em}figcaption small{opacity:.7;white-space:nowrap}\
    svg{width:100%;max-width:560px;height:auto}svg text{fill:currentColor}";

/// The rows as a page.
pub fn html(rows: &[Row]) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>Linux swap, published and simulated</title>\n\
         <style>{STYLE}</style>\n<h1>Linux swap, published and simulated</h1>\n"
    );
    for kind in Kind::ALL {
        let about = match kind {
            Kind::Predicted => "No constant was worked out from these rows.",
            Kind::Change => "The number before the change is an input; what the change makes of it is predicted.",
            Kind::Fitted => "A constant was worked out from each of these rows, so that it agrees shows nothing.",
        };
        let _ = write!(page, "<h2>{}</h2><p>{about}</p><div class=\"wide\"><table><tr>", capital(kind.name()));
        HEAD.iter().for_each(|cell| page += &format!("<th>{cell}</th>"));
        page += "</tr>\n";
        for row in rows.iter().filter(|row| row.kind == kind) {
            page += "<tr>";
            for cell in cells(row) {
                let class = if cell == WRONG { " class=\"wrong\"" } else { "" };
                page += &format!("<td{class}>{}</td>", escaped(&cell));
            }
            page += "</tr>\n";
        }
        page += "</table></div>\n<ul class=\"notes\">\n";
        for row in rows.iter().filter(|row| row.kind == kind && !row.note.is_empty()) {
            let _ = writeln!(page, "<li>Row {}: {}", row.number, escaped(&row.note));
        }
        page += "</ul>\n";
    }
    page += "<h2>Plots</h2>\n<div class=\"plots\">\n";
    for alike in rows.chunk_by(|row, next| (row.number, row.unit) == (next.number, next.unit)) {
        page += &figure(alike);
    }
    page += "</div>\n<h2>Constants</h2><div class=\"wide\"><table class=\"source\"><tr><th>name</th><th>source</th>\
             <th>value</th><th>fitted on</th><th>before of</th></tr>\n";
    for (name, constant) in Calibration::table().iter() {
        let listed = |rows: &[u32]| rows.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
        let _ = writeln!(
            page,
            "<tr><td>{name}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escaped(&constant.source),
            constant.value,
            listed(&constant.fitted_on),
            listed(&constant.before_of)
        );
    }
    page + "</table></div></html>\n"
}

/// Rows with the same number and unit as bars.
fn figure(rows: &[Row]) -> String {
    let row = &rows[0];
    let groups: Vec<(&str, Vec<Bar>)> =
        rows.iter().map(|row| (if rows.len() > 1 { row.test } else { "" }, bars_of(row))).collect();
    let title = if rows.len() > 1 { String::new() } else { format!(": {}", escaped(row.test)) };
    format!(
        "<figure><figcaption><b>Row {}</b>{title} <small>({}, {})</small></figcaption>{}</figure>\n",
        row.number,
        escaped(row.unit),
        row.kind.name(),
        plot::bars(&groups)
    )
}

fn bars_of(row: &Row) -> Vec<Bar> {
    let bar = |name: &str, value: f64, colour| Bar {
        name: name.to_owned(),
        value,
        text: format!("{} {}", number(value), row.unit),
        colour,
    };
    let mut bars = Vec::new();
    for (before, after, pair) in [
        ("published, before", "published, after", row.published),
        ("simulated, before", "simulated, after", row.simulated),
    ] {
        if let Some(pair) = pair {
            bars.extend([bar(before, pair.before, 0), bar(after, pair.after, 1)]);
        }
    }
    bars.extend(row.ours.map(|ours| bar("ours", ours, 2)));
    bars
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
