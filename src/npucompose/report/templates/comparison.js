
'use strict';
(() => {
  const table = document.getElementById('runs');
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const value = (row, column) => {
    const text = row.cells[column].dataset.v;
    if (text === undefined || text === '') return null;
    const number = Number(text);
    return Number.isNaN(number) ? text : number;
  };
  const compare = (a, b) =>
    typeof a === 'number' && typeof b === 'number' ? a - b : String(a).localeCompare(String(b));
  const sort = (column) => {
    const down = heads[column].getAttribute('aria-sort') === 'ascending';
    for (const head of heads) head.removeAttribute('aria-sort');
    heads[column].setAttribute('aria-sort', down ? 'descending' : 'ascending');
    const rows = [...body.rows];
    rows.sort((one, other) => {
      const a = value(one, column), b = value(other, column);
      if (a === null || b === null) return (a === null) - (b === null);  // no value: last, either way
      return down ? compare(b, a) : compare(a, b);
    });
    body.append(...rows);
  };
  heads.forEach((head, column) => {
    const button = document.createElement('button');
    button.type = 'button';
    button.textContent = head.textContent;
    button.addEventListener('click', () => sort(column));
    head.replaceChildren(button);
  });

  const block = document.getElementById('facts');
  if (!block) return;
  const {texts, names, runs} = JSON.parse(block.textContent);
  const CUT = 60, ABSENT = '\u2014';
  const cut = (text, start) =>
    (start ? '\u2026' : '') + text.slice(start, start + CUT) + (start + CUT < text.length ? '\u2026' : '');
  const beside = (one, other) => {
    if (one.length <= CUT && other.length <= CUT) return [one, other];
    let same = 0;
    while (same < Math.min(one.length, other.length) && one[same] === other[same]) same += 1;
    const start = Math.max(0, same - CUT / 2);
    return [cut(one, start), cut(other, start)];
  };
  const factsOf = (number) => new Map(runs[number].map(([name, text, by]) => [name, [texts[text], texts[by]]]));
  const differences = (one, other) => {
    const a = factsOf(one), b = factsOf(other);
    const both = [...new Set([...a.keys(), ...b.keys()])];
    const parts = [...new Set(both.map((name) => names[name][0]))];
    both.sort((x, y) => parts.indexOf(names[x][0]) - parts.indexOf(names[y][0]));
    return both.flatMap((name) => {
      const [x, by] = a.get(name) || ['', ''];
      const [y, also] = b.get(name) || ['', ''];
      if (x === y) return [];
      const saidBy = [by, also].filter(Boolean).join(' \u2192 ');
      return [[...names[name], ...beside(x, y).map((text) => text || ABSENT), saidBy]];
    });
  };
  const element = (name, ...children) => {
    const made = document.createElement(name);
    made.append(...children);
    return made;
  };
  const one = document.getElementById('one'), other = document.getElementById('other');
  const show = () => {
    const found = differences(one.value, other.value);
    const place = document.getElementById('differences');
    if (!found.length) {
      place.replaceChildren(element('p', 'Nothing differs.'));
      return;
    }
    const head = element('tr', ...['part', 'name', 'one', 'other', 'said by'].map((text) => element('th', text)));
    const rows = found.map(([part, name, x, y, by]) =>
      element('tr', ...[part, element('code', name), x, y, by].map((cell) => element('td', cell))));
    const table = element('table', element('thead', head), element('tbody', ...rows));
    table.className = 'prose';
    const box = element('div', table);
    box.className = 'scroll';
    place.replaceChildren(box);
  };
  for (const select of [one, other]) select.addEventListener('change', show);
  document.getElementById('pair').hidden = true;
  document.getElementById('choose').hidden = false;
  show();
})();
