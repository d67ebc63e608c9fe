//! Plots, as SVG.

use plotters::element::DashedPathElement;
use plotters::prelude::*;

/// One line of a plot.
pub struct Line<'a> {
    /// What it is called.
    pub name: &'a str,
    /// Its points, in order.
    pub points: Vec<(f64, f64)>,
}

/// Colours that are told apart by people who do not see red and green alike (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(136, 136, 136),
];

/// Whole numbers without a point.
fn tick(value: &f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

/// Lines over a common x axis, from 0 on, for a file of its own: on white. The first line is broad and solid and the others
/// are dashed, so that none hides another that runs along with it.
pub fn lines(title: &str, x: &str, y: &str, lines: &[Line]) -> String {
    const LEGEND: i32 = 160;
    let mut svg = String::new();
    let largest = |pick: fn(&(f64, f64)) -> f64| {
        lines.iter().flat_map(|line| line.points.iter().map(pick)).fold(f64::MIN_POSITIVE, f64::max)
    };
    let (x_max, y_max) = (largest(|point| point.0), largest(|point| point.1));
    {
        let root = SVGBackend::with_string(&mut svg, (960, 500)).into_drawing_area();
        let drawn = (|| {
            root.fill(&WHITE)?;
            let mut chart = ChartBuilder::on(&root)
                .caption(title, ("sans-serif", 18))
                .margin(12)
                .margin_right(LEGEND)
                .x_label_area_size(44)
                .y_label_area_size(56)
                .build_cartesian_2d(0.0..x_max * 1.01, 0.0..y_max * 1.05)?;
            chart
                .configure_mesh()
                .x_desc(x)
                .y_desc(y)
                .label_style(("sans-serif", 13))
                .x_label_formatter(&tick)
                .y_label_formatter(&tick)
                .light_line_style(TRANSPARENT)
                .bold_line_style(BLACK.mix(0.15))
                .draw()?;
            for (index, line) in lines.iter().enumerate() {
                let points = line.points.iter().copied();
                let at = 60 + 24 * index as i32;
                let legend = [(960 - LEGEND + 14, at), (960 - LEGEND + 50, at)];
                let colour = COLOURS[index % COLOURS.len()];
                if index == 0 {
                    let style = colour.stroke_width(4);
                    chart.draw_series(LineSeries::new(points, style))?;
                    root.draw(&PathElement::new(legend, style))?;
                } else {
                    let (dash, style) = (4 * (lines.len() - index) as i32, colour.stroke_width(2));
                    chart.draw_series(DashedLineSeries::new(points, dash, 5, style))?;
                    root.draw(&DashedPathElement::new(legend, dash, 5, style))?;
                }
                root.draw(&Text::new(line.name, (legend[1].0 + 8, at - 7), ("sans-serif", 14)))?;
            }
            root.present()
        })();
        drawn.expect("drawing into a string does not fail");
    }
    svg
}

/// A bar.
pub struct Bar {
    /// What it is.
    pub name: String,
    /// How long.
    pub value: f64,
    /// The number as it is to be read.
    pub text: String,
    /// Bars with the same number have the same colour.
    pub colour: usize,
}

/// Groups of bars, with the number beside each, for a page that gives its own colour to texts and has its own background.
/// Lengths are to scale, but where some would be too short to be seen: then they are so many tenfolds.
pub fn bars(groups: &[(&str, Vec<Bar>)]) -> String {
    const BAR: i32 = 22;
    const HEAD: i32 = 26;
    const LEFT: i32 = 138;
    const LONGEST: f64 = 290.0;
    let all = || groups.iter().flat_map(|(_, bars)| bars.iter().map(|bar| bar.value));
    let (least, largest) = (all().fold(f64::MAX, f64::min), all().fold(f64::MIN_POSITIVE, f64::max));
    let first_decade = least.max(f64::MIN_POSITIVE).log10().floor();
    let tenfolds = least >= 1.0 && largest / least > 100.0;
    let length = |value: f64| match tenfolds {
        true => (value.log10() - first_decade) / (largest.log10() - first_decade) * LONGEST,
        false => value / largest * LONGEST,
    };
    let decades = first_decade as i32..=largest.log10().floor() as i32;
    let decades: Vec<(f64, i32)> = decades
        .map(|decade| 10f64.powi(decade))
        .map(|decade| (decade, LEFT + length(decade) as i32))
        .filter(|_| tenfolds)
        .collect();
    let height = |bars: &[Bar], head: &str| bars.len() as i32 * BAR + if head.is_empty() { 8 } else { HEAD };
    let total: i32 = groups.iter().map(|(head, bars)| height(bars, head)).sum();
    let mut svg = String::new();
    {
        let axis = if tenfolds { 22 } else { 0 };
        let root = SVGBackend::with_string(&mut svg, (560, (total + axis) as u32)).into_drawing_area();
        let drawn = (|| {
            let mut top = 0;
            for (head, bars) in groups {
                if !head.is_empty() {
                    root.draw(&Text::new(*head, (0, top + 6), ("sans-serif", 13)))?;
                    top += HEAD - 4;
                }
                for &(_, at) in &decades {
                    let bottom = top + bars.len() as i32 * BAR - 5;
                    root.draw(&PathElement::new([(at, top), (at, bottom)], COLOURS[6].mix(0.5).stroke_width(1)))?;
                }
                for bar in bars {
                    let end = LEFT + length(bar.value).max(1.0) as i32;
                    root.draw(&Rectangle::new([(LEFT, top), (end, top + BAR - 5)], COLOURS[bar.colour].filled()))?;
                    root.draw(&Text::new(bar.name.as_str(), (8, top + 2), ("sans-serif", 13)))?;
                    root.draw(&Text::new(bar.text.as_str(), (end + 6, top + 2), ("sans-serif", 13)))?;
                    top += BAR;
                }
                top += if head.is_empty() { 8 } else { 4 };
            }
            for (decade, at) in decades {
                root.draw(&Text::new(thousands(decade, 0), (at, total + 4), ("sans-serif", 11)))?;
            }
            root.present()
        })();
        drawn.expect("drawing into a string does not fail");
    }
    svg
}

/// A number with `decimals` digits after the point and a comma between thousands.
pub fn thousands(value: f64, decimals: usize) -> String {
    let plain = format!("{:.decimals$}", value.abs());
    let (whole, rest) = plain.split_at(plain.find('.').unwrap_or(plain.len()));
    let mut text = String::from(if value < 0.0 { "-" } else { "" });
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_parted() {
        assert_eq!(
            [thousands(999.0, 0), thousands(1000.4, 0), thousands(-1234567.891, 2)],
            ["999", "1,000", "-1,234,567.89"]
        );
    }

    #[test]
    fn a_small_bar_beside_a_large_one_is_seen() {
        let bar = |value| Bar { name: "n".into(), value, text: "t".into(), colour: 0 };
        let widths = |values: &[f64]| -> Vec<u32> {
            let svg = bars(&[("", values.iter().map(|&value| bar(value)).collect())]);
            let parts = svg.split("<rect").skip(1).map(|rect| rect.split("width=\"").nth(1).unwrap());
            parts.map(|width| width.split('"').next().unwrap().parse().unwrap()).collect()
        };
        let to_scale = widths(&[10.0, 100.0]);
        assert!(to_scale[1].abs_diff(10 * to_scale[0]) < 10, "{to_scale:?}");
        let tenfolds = widths(&[20.0, 200_000.0]);
        assert!(tenfolds[0] > 10 && tenfolds[1] > 10 * tenfolds[0], "{tenfolds:?}");
    }

    #[test]
    fn a_plot_names_its_lines_and_is_the_same_again() {
        let draw = || {
            let points = vec![(1.0, 0.5), (2.0, 0.25)];
            lines(
                "misses",
                "pages",
                "ratio",
                &[Line { name: "lirs", points: points.clone() }, Line { name: "x", points }],
            )
        };
        let svg = draw();
        assert!(svg.starts_with("<svg") && svg.contains("lirs") && svg.contains("polyline"), "{svg}");
        assert_eq!(svg, draw());
    }
}
