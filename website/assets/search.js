// What readers type, as a query of Lunr, the theme's search engine: https://lunrjs.com/guides/searching.html
// Words of English that are not in its index (lunr.stopWordFilter): "a" would find what begins with it, "+a" nothing.
const LEFT_OUT = new Set((
  "a able about across after all almost also am among an and any are as at be because been but by can cannot could " +
  "dear did do does either else ever every for from get got had has have he her hers him his how however i if in " +
  "into is it its just least let like likely may me might most must my neither no nor not of off often on only or " +
  "other our own rather said say says she should since so some than that the their them then there these they this " +
  "tis to too twas us wants was we were what when where which while who whom why will with would yet you your"
).split(" "));

function toQuery(text) {
  const words = text.split(/[\s:*]+/); // : and * are operators of Lunr
  // the sections that explain a variable have it in their text; a title with it would rank above them
  if (/^[A-Z][A-Z0-9]*_\w*$/.test(text)) return `text:${text}`;
  return words
    .filter((word, index) => index === words.length - 1 || !LEFT_OUT.has(word.toLowerCase()))
    .map(requireParts)
    .join(" ");
}

// Lunr divides --ntasks-per-node and get-master; a result has all of their parts. The end of the last may not be typed yet.
function requireParts(word) {
  const parts = word.split(/-+/).filter(Boolean), last = parts.length - 1;
  if (last < 1) return word.replace(/^-+(?=\w)/, ""); // to Lunr, results may not have -word
  // titles with parts of an option (node) are about other things
  const mark = word.startsWith("-") ? "+text:" : "+";
  return parts
    .map((part, index) => LEFT_OUT.has(part.toLowerCase()) ? part : mark + part + (index === last ? "*" : ""))
    .join(" ");
}

// The theme sends the text of its search field to a worker.
const send = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...options) {
  const isQuery = typeof message?.data === "string";
  return send.call(this, isQuery ? { ...message, data: toQuery(message.data) } : message, ...options);
};
