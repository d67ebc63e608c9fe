//! Plots, as SVG.

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
    RGBColor(0, 0, 0),
];

/// Lines over a common x axis, from 0 on.
pub fn lines(title: &str, x: &str, y: &str, lines: &[Line]) -> String {
    let mut svg = String::new();
    let largest = |pick: fn(&(f64, f64)) -> f64| {
        lines.iter().flat_map(|line| line.points.iter().map(pick)).fold(f64::MIN_POSITIVE, f64::max)
    };
    let (x_max, y_max) = (largest(|point| point.0), largest(|point| point.1));
    {
        let root = SVGBackend::with_string(&mut svg, (860, 480)).into_drawing_area();
        let drawn = (|| {
            root.fill(&WHITE)?;
            let mut chart = ChartBuilder::on(&root)
                .caption(title, ("sans-serif", 20))
                .margin(12)
                .x_label_area_size(44)
                .y_label_area_size(64)
                .build_cartesian_2d(0.0..x_max, 0.0..y_max * 1.05)?;
            chart.configure_mesh().x_desc(x).y_desc(y).light_line_style(TRANSPARENT).draw()?;
            for (index, line) in lines.iter().enumerate() {
                let colour = COLOURS[index % COLOURS.len()];
                chart
                    .draw_series(LineSeries::new(line.points.iter().copied(), colour.stroke_width(2)))?
                    .label(line.name)
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
            }
            chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3)).draw()?;
            root.present()
        })();
        drawn.expect("drawing into a string does not fail");
    }
    svg
}

/// One bar for each number, with the number beside it.
pub fn bars(title: &str, unit: &str, bars: &[(String, f64)]) -> String {
    const BAR: i32 = 26;
    let largest = bars.iter().map(|(_, value)| *value).fold(f64::MIN_POSITIVE, f64::max);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (860, (bars.len() as i32 * BAR + 44) as u32)).into_drawing_area();
        let drawn = (|| {
            root.draw(&Text::new(title, (8, 10), ("sans-serif", 16)))?;
            for (index, (name, value)) in bars.iter().enumerate() {
                let top = 36 + index as i32 * BAR;
                let end = 190 + (value / largest * 520.0) as i32;
                let colour = COLOURS[usize::from(name.ends_with("after")) + 2 * usize::from(name == "ours")];
                root.draw(&Rectangle::new([(190, top), (end.max(191), top + BAR - 8)], colour.filled()))?;
                root.draw(&Text::new(name.as_str(), (8, top + 3), ("sans-serif", 14)))?;
                let value = if *value < 10.0 { format!("{value:.3} {unit}") } else { format!("{value:.1} {unit}") };
                root.draw(&Text::new(value, (end + 8, top + 3), ("sans-serif", 14)))?;
            }
            root.present()
        })();
        drawn.expect("drawing into a string does not fail");
    }
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

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
