/* Defects of the layout of a section: texts of charts that are cut off or overlap, and charts that show nothing. */
(id) => {
  const section = document.getElementById(id), defects = [];
  const marks = ".point, .js-line, .js-fill, .bars path, .heatmaplayer image, .contourlayer path, canvas";
  const isSeen = (mark) => { const box = mark.getBoundingClientRect(); return box.width + box.height > 1; };
  const turned = /rotate\(-?(?!0[,)]|90)/; // labels of an axis that are neither level nor upright
  if (section.scrollWidth > section.clientWidth + 1) defects.push(`${id} is wider than its frame`);
  for (const chart of section.querySelectorAll(".chart")) {
    const frame = chart.getBoundingClientRect(), label = chart.getAttribute("aria-label");
    if (![...chart.querySelectorAll(marks)].some(isSeen)) defects.push(`${label} is empty`);
    const texts = [...chart.querySelectorAll("svg text")]
      .filter((text) => text.textContent.trim() && !text.closest(".hoverlayer") && getComputedStyle(text).fill !== "rgba(0, 0, 0, 0)")
      .map((text) => ({ text: text.textContent, box: text.getBoundingClientRect(), isTurned: turned.test(text.getAttribute("transform") ?? "") }))
      .filter(({ box }) => box.width > 0);
    for (const { text, box } of texts) {
      const isInside = box.left > frame.left - 2 && box.right < frame.right + 2 && box.top > frame.top - 2 && box.bottom < frame.bottom + 2;
      if (!isInside) defects.push(`${label}: "${text}" is cut off`);
    }
    texts.forEach((a, i) => texts.slice(i + 1).forEach((b) => {
      const width = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
      const height = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
      if (width > 2 && height > 4 && !(a.isTurned && b.isTurned)) defects.push(`${label}: "${a.text}" lies on "${b.text}"`);
    }));
  }
  return defects;
}
