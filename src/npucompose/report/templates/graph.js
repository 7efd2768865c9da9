'use strict';
// The graph before and after the passes, on a canvas. Every text goes through textContent or fillText.
(() => {
  const block = document.getElementById('graph-data');
  if (!block) return;
  performance.mark('graph-begun');
  const {graphs, node: [WIDTH, HEIGHT]} = JSON.parse(block.textContent);
  const part = (name) => document.getElementById('graph-' + name);
  const canvas = part('canvas'), tip = part('tip'), pen = canvas.getContext('2d');
  const COLOURS = 6, LARGEST = 3, READABLE = 0.5, MANY = 16, APART = 12, FAR = 700;
  let graph, state, selected = -1, hovered = -1, scale = 1, left = 0, top = 0, colours, pending = false;

  const element = (name, words, kind) => {
    const made = document.createElement(name);
    if (words !== undefined) made.textContent = words;
    if (kind) made.className = kind;
    return made;
  };

  // What the tables say of a node.
  const text = (column, node) => state.texts[state[column][node]];
  const colourOf = (node) => {
    const stream = text('streams', node);
    return stream ? 'c' + graph.streams.indexOf(stream) % COLOURS : isInput(node) ? undefined : 'c5';
  };
  const isInput = (node) => ['input', 'constant', 'output'].includes(text('operators', node));
  const words = (node) => [
    state.names[node], text('operators', node), text('values', node), text('streams', node), text('sources', node),
  ].filter(Boolean).join(' \u00b7 ');

  // Who reads whom, both ways; nodes that only one of the two states has.
  const prepare = (one, other) => {
    one.readers = one.names.map(() => []);
    one.inputs.forEach((read, node) => read.forEach((from) => one.readers[from].push(node)));
    one.waits = one.names.map(() => []);
    one.events.forEach(([recorder, waiter]) => {
      one.waits[waiter].push([recorder, 'waits for']);
      one.waits[recorder].push([waiter, 'is waited for by']);
    });
    const edges = one.inputs.flatMap((read, node) => read.map((from) => [from, node]));
    const isFar = one.isFar = ([from, to]) => [0, 1].some((axis) => Math.abs(one.at[from][axis] - one.at[to][axis]) > FAR);
    one.near = edges.filter((edge) => !isFar(edge));
    one.far = edges.filter(isFar);  // faint, or they hide the others
    const known = other && new Set(other.names);
    one.only = one.names.map((name) => Boolean(known) && !known.has(name));
  };

  // Drawing: at most once a frame, and only what is on the screen.
  const readColours = () => {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue('--' + name).trim();
    colours = Object.fromEntries(
      ['ink', 'dim', 'paper', 'card', 'rule', ...Array.from({length: COLOURS}, (_, n) => 'c' + n)].map((n) => [n, read(n)]));
    colours.on = Object.fromEntries(Object.entries(colours).map(([name, colour]) => [name, onTopOf(colour)]));
  };
  const onTopOf = (colour) => {  // black or white, whichever is read more easily
    const [red, green, blue] = [1, 3, 5].map((at) => (parseInt(colour.slice(at, at + 2), 16) / 255) ** 2.2);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.2 ? '#10141b' : '#ffffff';
  };
  const size = () => [canvas.clientWidth, canvas.clientHeight];
  const isOnScreen = (x, y, right, bottom) => {
    const [wide, high] = size();
    return right >= left && x <= left + wide / scale && bottom >= top && y <= top + high / scale;
  };
  const line = (from, to) => {
    const [x, y] = state.at[from], [toX, toY] = state.at[to];
    const startX = x + WIDTH / 2, startY = y + HEIGHT, endX = toX + WIDTH / 2;
    if (!isOnScreen(Math.min(startX, endX), Math.min(startY, toY), Math.max(startX, endX), Math.max(startY, toY))) return;
    pen.moveTo(startX, startY);
    if (scale < READABLE / 2) pen.lineTo(endX, toY);
    else {
      const bend = Math.max(14, Math.min(80, Math.abs(toY - startY) / 2));
      pen.bezierCurveTo(startX, startY + bend, endX, toY - bend, endX, toY);
    }
  };
  const stroke = (pairs, colour, width, alpha = 1) => {
    pen.beginPath();
    for (const [from, to] of pairs) line(from, to);
    pen.strokeStyle = colour;
    pen.lineWidth = Math.max(width, width * 0.7 / scale);
    pen.globalAlpha = alpha;
    pen.stroke();
    pen.globalAlpha = 1;
  };
  const drawEvents = () => {
    const half = Math.max(4, 3 / scale);
    stroke(state.events.filter((edge) => !state.isFar(edge)), colours.ink, 1.8, 0.8);
    stroke(state.events.filter(state.isFar), colours.ink, 1.8, 0.2);
    if (scale < READABLE / 2 && state.events.length > MANY) return;
    pen.fillStyle = colours.ink;
    for (const [, waiter] of state.events) {
      const x = state.at[waiter][0] + WIDTH / 2, y = state.at[waiter][1];
      pen.beginPath();
      pen.moveTo(x, y);
      pen.lineTo(x - half, y - 2 * half);
      pen.lineTo(x + half, y - 2 * half);
      pen.fill();
    }
  };
  const drawNode = (node) => {
    const [x, y] = state.at[node];
    if (!isOnScreen(x, y, x + WIDTH, y + HEIGHT)) return;
    const colour = colourOf(node);
    pen.fillStyle = colours[colour ?? 'card'];
    pen.fillRect(x, y, WIDTH, HEIGHT);
    if (scale >= READABLE / 2 || state.only[node] || node === selected || node === hovered) {
      pen.setLineDash(state.only[node] ? [5, 4] : []);
      pen.lineWidth = node === selected ? Math.max(3, 2 / scale) : 1;
      pen.strokeStyle = node === selected || node === hovered || state.only[node] ? colours.ink : colours.rule;
      pen.strokeRect(x, y, WIDTH, HEIGHT);
      pen.setLineDash([]);
    }
    if (scale < READABLE) return;
    pen.fillStyle = colour ? colours.on[colour] : colours.ink;
    const name = state.names[node];
    pen.fillText(name.length > 20 ? name.slice(0, 19) + '\u2026' : name, x + 8, y + HEIGHT / 2 + 0.5);
  };
  const draw = () => {
    pending = false;
    const ratio = window.devicePixelRatio || 1, [wide, high] = size();
    if (canvas.width !== Math.round(wide * ratio) || canvas.height !== Math.round(high * ratio)) {
      canvas.width = Math.round(wide * ratio);
      canvas.height = Math.round(high * ratio);
    }
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.fillStyle = colours.paper;
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.setTransform(scale * ratio, 0, 0, scale * ratio, -left * scale * ratio, -top * scale * ratio);
    pen.font = '12px ui-monospace, monospace';
    pen.textBaseline = 'middle';
    stroke(state.near, colours.dim, 1, 0.6);
    stroke(state.far, colours.dim, 1, 0.12);
    for (let node = 0; node < state.names.length; node += 1) drawNode(node);
    drawEvents();
    if (selected < 0) return;
    stroke(state.inputs[selected].map((from) => [from, selected]), colours.c0, 3);
    stroke(state.readers[selected].map((to) => [selected, to]), colours.c1, 3);
  };
  const redraw = () => {
    if (!pending) requestAnimationFrame(draw);
    pending = true;
  };

  // Moving about.
  const smallest = () => Math.min(1, size()[0] / (state.width + 40), size()[1] / (state.height + 40));
  const zoom = (factor, x = size()[0] / 2, y = size()[1] / 2) => {
    const next = Math.max(smallest() * 0.8, Math.min(LARGEST, scale * factor));
    left += x / scale - x / next;
    top += y / scale - y / next;
    scale = next;
    redraw();
  };
  const fit = () => {
    scale = smallest();
    left = state.width / 2 - size()[0] / scale / 2;
    top = state.height / 2 - size()[1] / scale / 2;
    redraw();
  };
  const centre = (node) => {
    const [x, y] = state.at[node], [wide, high] = size();
    scale = Math.max(scale, 0.8);
    left = x + WIDTH / 2 - wide / scale / 2;
    top = y + HEIGHT / 2 - high / scale / 2;
  };
  const nodeAt = (event) => {
    const box = canvas.getBoundingClientRect();
    const x = left + (event.clientX - box.left) / scale, y = top + (event.clientY - box.top) / scale;
    return state.at.findIndex(([a, b]) => x >= a && x <= a + WIDTH && y >= b && y <= b + HEIGHT);
  };

  // One node, in words: for the eye and, as a sentence, for a screen reader.
  const links = (title, nodes) => {
    const place = element('p', title + ': ', 'dim');
    for (const other of nodes.slice(0, MANY)) {
      const button = element('button', state.names[other]);
      button.type = 'button';
      button.addEventListener('click', () => select(other, true));
      place.append(button, ' ');
    }
    if (nodes.length > MANY) place.append(`and ${nodes.length - MANY} more`);
    return place;
  };
  const describe = (node) => {
    const place = part('node');
    if (node < 0) return place.replaceChildren();
    const head = element('p');
    head.append(element('b', state.names[node]), ' = ', element('code', text('operators', node)), ' ',
      element('code', text('values', node)));
    const about = [head, element('p', text('sources', node) || 'no line of the model is known', 'source')];
    if (text('streams', node)) about.push(element('p', 'stream ' + text('streams', node)));
    const waits = state.waits[node].map(([other, verb]) => `${verb} ${state.names[other]}`);
    if (waits.length) about.push(element('p', 'event: ' + waits.join(', ')));
    if (state.only[node]) about.push(element('p', 'not in the other graph', 'dim'));
    about.push(links('reads', state.inputs[node]), links('read by', state.readers[node]));
    place.replaceChildren(...about);
  };
  const select = (node, move) => {
    selected = node;
    describe(node);
    part('said').textContent = node < 0 ? '' : words(node);
    if (move && node >= 0) centre(node);
    redraw();
  };
  const hover = (event) => {
    const node = event ? nodeAt(event) : -1;
    if (node !== hovered) redraw();
    hovered = node;
    canvas.classList.toggle('over', node >= 0);
    tip.hidden = node < 0;
    if (node < 0) return;
    tip.replaceChildren(element('b', state.names[node]), element('div', [text('operators', node), text('values', node),
      text('streams', node)].filter(Boolean).join(' \u00b7 ')), element('div', text('sources', node), 'source'));
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    tip.style.left = Math.max(0, Math.min(x + APART, box.width - tip.offsetWidth)) + 'px';
    tip.style.top = (y + APART + tip.offsetHeight > box.height ? y - APART - tip.offsetHeight : y + APART) + 'px';
  };

  // Which graph, before or after.
  const show = (number) => {
    const name = selected >= 0 ? state.names[selected] : undefined, isNew = !graph.states.includes(state);
    state = graph.states[number];
    canvas.setAttribute('aria-label', `${graph.name}, ${state.label}`);
    selected = hovered = -1;
    tip.hidden = true;
    select(name === undefined ? -1 : state.names.indexOf(name), !isNew && scale >= READABLE);
    if (isNew || selected < 0) fit();
  };
  const choose = (number) => {
    graph = graphs[number];
    graph.states.forEach((one, n) => one.readers || prepare(one, graph.states[1 - n]));
    part('legend').replaceChildren(...graph.streams.map((stream, n) => {
      const item = element('li');
      item.append(element('span', '', 'key c' + n % COLOURS), stream);
      return item;
    }), ...(graph.states.some((one) => one.only.includes(true)) ? [element('li', 'dashed: only in this one of the two graphs')] : []));
    part('states').replaceChildren(...graph.states.map((one, n) => {
      const label = element('label'), radio = element('input');
      Object.assign(radio, {type: 'radio', name: 'state', checked: n === graph.states.length - 1});
      radio.addEventListener('change', () => show(n));
      label.append(radio, ' ' + one.label);
      return label;
    }));
    selected = -1;
    state = undefined;
    show(graph.states.length - 1);
  };
  const find = () => {
    const wanted = part('find').value.trim().toLowerCase();
    if (!wanted) return;
    const found = state.names.map((_, node) => node).filter((node) => words(node).toLowerCase().includes(wanted));
    const next = found.find((node) => node > selected) ?? found[0] ?? -1;
    select(next, true);
    part('said').textContent = next < 0 ? 'nothing found'
      : `${found.indexOf(next) + 1} of ${found.length}: ${words(next)}`;
  };

  // Hands: pointers and keys.
  const pointers = new Map();
  let moved = 0;
  const span = () => {
    const [one, other] = [...pointers.values()];
    return Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
  };
  canvas.addEventListener('pointerdown', (event) => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, event);
    moved = 0;
  });
  canvas.addEventListener('pointermove', (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) return hover(event);
    const was = pointers.size === 2 ? span() : 0;
    pointers.set(event.pointerId, event);
    moved += Math.abs(event.clientX - before.clientX) + Math.abs(event.clientY - before.clientY);
    left -= (event.clientX - before.clientX) / scale / pointers.size;
    top -= (event.clientY - before.clientY) / scale / pointers.size;
    const box = canvas.getBoundingClientRect();
    if (was) zoom(span() / was, event.clientX - box.left, event.clientY - box.top);
    redraw();
  });
  for (const name of ['pointerup', 'pointercancel']) canvas.addEventListener(name, (event) => {
    if (name === 'pointerup' && pointers.has(event.pointerId) && moved < 4) select(nodeAt(event), false);
    pointers.delete(event.pointerId);
  });
  canvas.addEventListener('pointerleave', () => hover());
  canvas.addEventListener('wheel', (event) => {
    if (!event.ctrlKey && !event.metaKey) return;  // the page scrolls
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / 200), event.offsetX, event.offsetY);
  }, {passive: false});
  const last = () => state.names.length - 1;
  const keys = {
    ArrowDown: () => select(state.readers[selected][0] ?? selected, true),
    ArrowUp: () => select(state.inputs[selected].find((node) => !isInput(node)) ?? state.inputs[selected][0] ?? selected, true),
    ArrowLeft: () => select(Math.max(0, selected - 1), true),
    ArrowRight: () => select(Math.min(last(), selected + 1), true),
    Home: () => select(0, true),
    End: () => select(last(), true),
    '+': () => zoom(1.4), '=': () => zoom(1.4), '-': () => zoom(1 / 1.4), 0: fit,
  };
  canvas.addEventListener('keydown', (event) => {
    const act = keys[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    if (selected < 0 && event.key.startsWith('Arrow')) select(0, true);
    else act();
  });
  canvas.addEventListener('focus', () => {
    if (selected < 0 && canvas.matches(':focus-visible')) select(0, false);
  });
  part('in').addEventListener('click', () => zoom(1.4));
  part('out').addEventListener('click', () => zoom(1 / 1.4));
  part('fit').addEventListener('click', fit);
  part('find').addEventListener('keydown', (event) => { if (event.key === 'Enter') find(); });
  part('name').addEventListener('change', (event) => choose(event.target.selectedIndex));
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { readColours(); redraw(); });

  part('of').hidden = graphs.length < 2;
  document.getElementById('graph').hidden = false;
  readColours();
  choose(0);
  draw();
  new ResizeObserver(redraw).observe(canvas);
  performance.mark('graph-drawn');
})();
