// To Lunr, the theme's search engine, a leading hyphen excludes a word: the theme's worker gets --nodes as nodes.
const send = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...options) {
  const isQuery = typeof message?.data === "string";
  const data = isQuery ? message.data.replace(/(^|\s)-+(?=\w)/g, "$1") : message.data;
  return send.call(this, isQuery ? { ...message, data } : message, ...options);
};

// On a phone the rows of wide tables are cards (site.css): each cell has its heading.
for (const table of document.querySelectorAll("article table")) {
  const headings = [...table.querySelectorAll("thead th")].map((heading) => heading.textContent);
  for (const cell of table.querySelectorAll("tbody td")) cell.dataset.heading = headings[cell.cellIndex];
}
