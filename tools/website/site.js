// A search requires all words of the query, the last of which may be incomplete. Only if no section has them all, one of
// them is enough. The signs that divide words or are operators of Lunr, the theme's search engine, are removed, so that a
// message can be pasted as it is.
const DIVIDERS = /[\s\-,;:!=()[\]"'`/|<>${}*+~^]+/;
const send = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...options) {
  if (typeof message?.data !== "string") return send.call(this, message, ...options);
  const parts = message.data.split(DIVIDERS).map((part) => part.replace(/^\W+|\W+$/g, ""));
  const words = parts.filter(Boolean);
  const all = words.map((word) => `+${word}`).join(" ");
  const queries = [all, `${all}*`, words.join(" ")];
  const ask = () => send.call(this, { ...message, data: queries.shift() }, ...options);
  const answered = (event) => {
    const found = event.data?.data?.items?.length;
    if (found || queries.length === 0 || words.length === 0) {
      this.removeEventListener("message", answered, true);
    } else {
      event.stopImmediatePropagation(); // the theme shows the answer to the next query
      ask();
    }
  };
  this.addEventListener("message", answered, true);
  return ask();
};

// On a phone the rows of wide tables are cards (site.css): each cell has its heading.
for (const table of document.querySelectorAll("article table")) {
  const headings = [...table.querySelectorAll("thead th")].map((heading) => heading.textContent);
  for (const cell of table.querySelectorAll("tbody td")) cell.dataset.heading = headings[cell.cellIndex];
}
