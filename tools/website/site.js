// A search requires all words of the query, the last of which may be incomplete. If no section has them all, a pasted
// message may hold a message that is a section's title: then that one is searched for. Otherwise one of the words is enough.
// The signs that divide words or are operators of Lunr, the theme's search engine, are removed.
const DIVIDERS = /[\s\-,;:!=()[\]"'`/|<>${}*+~^]+/;
const wordsOf = (text) => text.split(DIVIDERS).map((part) => part.replace(/^\W+|\W+$/g, "")).filter(Boolean);
const required = (words) => words.map((word) => `+${word}`).join(" ");
const messages = []; // of titles, in code; "..." stands for any words
const contains = (words, message) => {
  const spaced = (some) => ` ${some.join(" ")} `.toLowerCase();
  const parts = message.split("...").map(wordsOf).filter((part) => part.length > 0);
  return parts.length > 0 && parts.every((part) => spaced(words).includes(spaced(part)));
};

const send = Worker.prototype.postMessage;
const unanswered = []; // the worker answers in order; of each: the message, and the queries to try if nothing is found
function ask(worker, message, [query, ...others]) {
  unanswered.push({ message, others });
  send.call(worker, { ...message, data: query });
}
function answered(event) {
  const items = event.data?.data?.items;
  if (!items) return;
  const { message, others } = unanswered.shift();
  const isLatest = unanswered.length === 0;
  if (items.length === 0 && others.length > 0 && isLatest) {
    event.stopImmediatePropagation(); // the theme shows the answer to the next query
    ask(this, message, others);
  }
}
Worker.prototype.postMessage = function (message, ...options) {
  if (message?.data?.docs) {
    for (const { title } of message.data.docs) {
      const codes = new DOMParser().parseFromString(title, "text/html").querySelectorAll("code");
      messages.push(...[...codes].map((code) => code.textContent));
    }
    this.addEventListener("message", answered, true);
  }
  if (typeof message?.data !== "string") return send.call(this, message, ...options);
  const words = wordsOf(message.data);
  const [title] = messages.filter((each) => contains(words, each)).sort((one, other) => other.length - one.length);
  ask(this, message, [
    required(words),
    `${required(words)}*`,
    required(wordsOf(title ?? "")),
    words.map((word) => `${word}^1`).join(" "), // with a weight, the theme adds no wildcard
  ].filter(Boolean));
};

// On a phone the rows of wide tables are cards (site.css): each cell has its heading.
for (const table of document.querySelectorAll("article table")) {
  const headings = [...table.querySelectorAll("thead th")].map((heading) => heading.textContent);
  for (const cell of table.querySelectorAll("tbody td")) cell.dataset.heading = headings[cell.cellIndex];
}
