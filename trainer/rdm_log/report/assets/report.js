// Draws the plots in the page's data, and lets the reader change the scale, the smoothing and the variant.
"use strict";
(() => {
  const touch = matchMedia("(pointer: coarse)").matches;
  const narrow = () => innerWidth < 600;
  const grid = { gridcolor: "#e8ebf0", zerolinecolor: "#d3d8e0", linecolor: "#c3c9d3" };
  const config = { responsive: true, displaylogo: false, displayModeBar: touch ? false : "hover",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };

  const layoutOf = (given, state) => ({
    height: 300,
    hovermode: "x unified",
    showlegend: undefined,
    dragmode: touch ? false : "zoom",
    ...given,
    font: { family: "system-ui, -apple-system, Segoe UI, Roboto, DejaVu Sans, sans-serif", size: 12, color: "#1d2330" },
    paper_bgcolor: "#fff",
    plot_bgcolor: "#fff",
    margin: narrow() ? { l: 46, r: 10, t: 26, b: 44 } : { l: 62, r: 18, t: 26, b: 46 },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    xaxis: { ...grid, automargin: true, ...given.xaxis },
    yaxis: { ...grid, automargin: true, ...given.yaxis, ...(state.log ? { type: "log", rangemode: "normal", dtick: undefined } : {}) },
  });

  // An exponential moving average with bias correction, which restarts after a gap.
  const smoothed = (values, share) => {
    let mean = 0, weight = 0;
    return values.map((value) => {
      if (value === null) { mean = weight = 0; return null; }
      mean = share * mean + (1 - share) * value;
      weight = share * weight + (1 - share);
      return mean / weight;
    });
  };

  const tracesOf = (data, state) => data.flatMap((trace) => {
    if (!state.smooth || !(trace.meta && trace.meta.smooth)) return [trace];
    const raw = { ...trace, opacity: 0.3, showlegend: false, hoverinfo: "skip", hovertemplate: undefined };
    return [raw, { ...trace, y: smoothed(trace.y, state.smooth) }];
  });

  const button = (label, pressed, act) => {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = label;
    made.setAttribute("aria-pressed", String(pressed));
    made.addEventListener("click", () => act(made));
    return made;
  };

  const show = (plot) => {
    const figure = document.getElementById(plot.id);
    const drawing = figure.querySelector(".drawing");
    const controls = figure.querySelector(".controls");
    const state = { variant: 0, log: false, smooth: 0 };
    const draw = () => {
      const { data, layout } = plot.variants[state.variant];
      return Plotly.react(drawing, tracesOf(data, state), layoutOf(layout, state), config);
    };
    if (plot.variants.length > 1) {
      const choices = plot.variants.map((variant, number) => button(variant.label, number === 0, () => {
        state.variant = number;
        choices.forEach((one, other) => one.setAttribute("aria-pressed", String(other === number)));
        draw();
      }));
      controls.append(...choices);
    }
    if (plot.controls.includes("log")) {
      controls.append(button("log scale", false, (made) => {
        state.log = !state.log;
        made.setAttribute("aria-pressed", String(state.log));
        draw();
      }));
    }
    if (plot.controls.includes("smooth")) {
      const label = document.createElement("label");
      const slider = Object.assign(document.createElement("input"), { type: "range", min: 0, max: 0.98, step: 0.02, value: 0 });
      slider.addEventListener("input", () => { state.smooth = Number(slider.value); draw(); });
      label.append("smooth", slider);
      controls.append(label);
    }
    return draw();
  };

  const plots = JSON.parse(document.getElementById("plots").textContent);
  const resize = () => document.querySelectorAll(".drawing").forEach((drawing) => Plotly.Plots.resize(drawing));
  addEventListener("beforeprint", resize);
  addEventListener("afterprint", resize);
  Promise.all(plots.map(show)).then(() => { document.documentElement.dataset.drawn = String(plots.length); });
})();
