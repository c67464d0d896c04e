(() => {
  const field = document.getElementById("search");
  document.getElementById("find").hidden = false;
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase();
    for (const part of document.querySelectorAll("details.failure, details.test")) {
      part.hidden = !part.textContent.toLowerCase().includes(words);
    }
  });
})();
