(() => {
  const all = (query, within = document) => [...within.querySelectorAll(query)];
  const groups = all("form.filters fieldset");
  const field = document.getElementById("search");
  const classesOf = (boxes) => boxes.flatMap((box) => box.dataset.shows.split(" "));
  const boxesOf = (group) => all("input:checked", group);

  // A page with many examples opens at once, since all but the first wait in templates.
  const made = (template) => {
    const example = document.createElement("div");
    example.className = template.className;
    example.append(template.content);
    return example;
  };

  // Show what the filters leave and the search finds; a failure shows a cell that they leave.
  const show = () => {
    const wanted = groups.map(boxesOf).filter((boxes) => boxes.length).map(classesOf);
    const fits = (names) => wanted.every((group) => group.some((name) => names.includes(name)));
    const fit = (element) => fits(element.className.split(" "));
    const words = field.value.toLowerCase();
    const found = (part) => !words || part.textContent.toLowerCase().includes(words);
    for (const part of all("details.failure")) {
      const cells = part.dataset.cells.split(";");
      const number = cells.filter((names) => fits(names.split(" "))).length;
      const times = part.querySelector(".times");
      if (times) times.textContent = number < cells.length ? `${number} of ${cells.length}×` : `${number}×`;
      const first = all(".example", part).find(fit);
      if (first && first.content) first.replaceWith(made(first));
      const examples = all("div.example", part);
      const shown = examples.find(fit) || examples[0];
      for (const one of examples) one.hidden = one !== shown;
      for (const note of all(".stray", part)) note.hidden = Boolean(first);
      part.hidden = !number || !found(part);
      const link = document.querySelector(`.reasons [href="#${part.id}"]`);
      if (link) {
        const row = link.closest("tr");
        row.hidden = part.hidden;
        row.querySelector(".times").textContent = number;
      }
    }
    for (const row of all(".grid tbody tr")) row.hidden = !all("td.cell", row).some(fit);
    for (const part of all("details.test")) part.hidden = !part.querySelector("tbody tr:not([hidden])") || !found(part);
    document.getElementById("chosen").textContent = address().map(decodeURIComponent).join(" ");
  };

  // The address of what is chosen, as in #precision=fp8,nvfp4&world_size=2.
  const address = () => groups.filter((group) => boxesOf(group).length).map((group) =>
    `${encodeURIComponent(group.dataset.axis)}=${boxesOf(group).map((box) => encodeURIComponent(box.value)).join(",")}`);

  const read = () => {
    const given = location.hash.slice(1);
    if (!given.includes("=")) return show();
    const wanted = new Map(given.split("&").map((part) => part.split("=")).map(([axis, values]) =>
      [decodeURIComponent(axis), (values || "").split(",").map(decodeURIComponent)]));
    for (const group of groups)
      for (const box of all("input", group)) box.checked = (wanted.get(group.dataset.axis) || []).includes(box.value);
    document.querySelector("details.filters").open = true;
    show();
  };

  // A command is copied with a click; in a frame, where that may be forbidden, it is selected.
  for (const code of navigator.clipboard ? all("pre.repeat > code") : []) {
    const button = document.createElement("button");
    button.textContent = "Copy";
    button.onclick = () => navigator.clipboard.writeText(code.textContent).then(
      () => { button.textContent = "Copied"; }, () => getSelection().selectAllChildren(code));
    code.after(button);
  }

  document.getElementById("find").hidden = false;
  field.addEventListener("input", show);
  for (const group of groups)
    group.addEventListener("change", () => {
      history.replaceState(null, "", `#${address().join("&")}`);
      show();
    });
  addEventListener("hashchange", read);
  read();
})();
