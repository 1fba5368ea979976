// A word that begins with a hyphen is an option here; to the theme's search it is a word that results may not have.
document.addEventListener("input", ({ target }) => {
  if (target.matches("[data-md-component=search-query]")) {
    const words = target.value.replace(/(^|\s)-+(?=\w)/g, "$1");
    if (words !== target.value) target.value = words;
  }
}, true);
