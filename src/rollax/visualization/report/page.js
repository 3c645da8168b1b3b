"use strict";
const page = JSON.parse(document.getElementById("data").textContent);
// Removes unused buttons and those that would upload a chart to the service of plotly.
const buttons = ["select2d", "lasso2d", "autoScale2d", "sendDataToCloud", "sendChartToCloud"];
const config = {
  responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "", modeBarButtonsToRemove: buttons,
};
const hidden = new Set();
for (const [id, chart] of Object.entries(page.charts)) {
  const displayModeBar = chart.layout.height >= page.template.layout.height; // the bar would cover small charts
  Plotly.newPlot(id, chart.data, { ...chart.layout, template: page.template }, { ...config, displayModeBar });
}

// A legend button hides and shows its lines in all charts.
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

// Printed charts are as wide as the page instead of the window.
const resize = (isPrinting) => {
  document.body.classList.toggle("printing", isPrinting);
  for (const id of Object.keys(page.charts)) Plotly.Plots.resize(id);
};
window.addEventListener("beforeprint", () => resize(true));
window.addEventListener("afterprint", () => resize(false));
