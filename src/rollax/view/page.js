"use strict";
const page = JSON.parse(document.getElementById("data").textContent);
// Nothing leaves the page: without the buttons that send a chart to plotly's own service, which are there by default.
const buttons = ["select2d", "lasso2d", "autoScale2d", "sendDataToCloud", "sendChartToCloud"];
const config = {
  responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "", modeBarButtonsToRemove: buttons,
};
const hidden = new Set();
for (const [id, chart] of Object.entries(page.charts)) {
  const displayModeBar = chart.layout.height >= page.template.layout.height; // which would cover a small chart
  Plotly.newPlot(id, chart.data, { ...chart.layout, template: page.template }, { ...config, displayModeBar });
}

// A name of a legend hides its lines in every chart, and shows them again.
for (const button of document.querySelectorAll("button[data-group]")) {
  button.addEventListener("click", () => {
    const group = button.dataset.group;
    hidden.has(group) ? hidden.delete(group) : hidden.add(group);
    for (const each of document.querySelectorAll("button[data-group]")) {
      each.setAttribute("aria-pressed", String(!hidden.has(each.dataset.group)));
    }
    for (const [id, chart] of Object.entries(page.charts)) {
      const traces = chart.data.map((trace, index) => index).filter((index) => chart.data[index].meta?.includes(group));
      const visible = traces.map((index) => !chart.data[index].meta.some((name) => hidden.has(name)));
      if (traces.length) Plotly.restyle(id, { visible }, traces);
    }
  });
}

// On paper charts are as wide as the sheet, not as the window.
const resize = (isPrinting) => {
  document.body.classList.toggle("printing", isPrinting);
  for (const id of Object.keys(page.charts)) Plotly.Plots.resize(id);
};
window.addEventListener("beforeprint", () => resize(true));
window.addEventListener("afterprint", () => resize(false));
