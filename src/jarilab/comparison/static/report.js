// The report of `jarilab compare`, drawn from the JSON in this page. No library, no network.
// Names, tokens and answers come from elsewhere: they reach the page only as text nodes and drawings.

const byId = (id) => document.getElementById(id);
const payload = JSON.parse(byId('payload').textContent);
const SVG = byId('namespace').namespaceURI;

// ---------------------------------------------------------------- elements, words and numbers

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === 'function') node.addEventListener(key, value);
    else if (value !== false) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}
const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
// <bdi> keeps right-to-left text from moving its surroundings
const name = (text) => make('bdi', {}, text);
const token = (text) => make('bdi', { class: 'token', title: text }, visible(text));
const unique = (items) => [...new Set(items)];
const known = (value) => value !== null && value !== undefined;
const largest = (items) => items.reduce((one, two) => Math.max(one, two), -Infinity); // spreading long lists overflows the stack
const smallest = (items) => -largest(items.map((item) => -item));
const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
const visible = (text) => ({ '': '∅', ' ': '␣', '\n': '↵', '\t': '⇥' })[text] ?? text;
const shorten = (text, length) => ([...text].length > length ? [...text].slice(0, length - 1).join('') + '…' : text);
const listed = (items) => items.length < 2 ? items.join('') : `${items.slice(0, -1).join(', ')} and ${items.at(-1)}`;
const whole = (value) => known(value) ? value.toLocaleString('en', { maximumFractionDigits: 0 }) : '–';
const compact = (value) => value.toLocaleString('en', { notation: 'compact', maximumSignificantDigits: 3 });

/** A share in percent; a near miss is never rounded to 0 % or 100 %. */
function percent(share) {
  if (!known(share)) return '–';
  let digits = share === 0 || share === 1 ? 0 : share > 0.1 && share < 0.99 ? 1 : 2;
  const rounded = () => (100 * share).toFixed(digits);
  while (digits < 6 && share !== 0 && share !== 1 && [0, 100].includes(Number(rounded()))) digits += 1;
  return `${rounded()}\u00a0%`;
}

/** A value of the metric that runs are judged by. */
const shown = (value) => metric.share ? percent(value) : known(value) ? value.toFixed(metric.digits).replace('-', '−') : '–';
const range = (low, high) => known(low) && known(high) ? `${shown(low).replace('\u00a0%', '')} – ${shown(high)}` : '–';

/** Three significant digits; only what is exactly 0 is printed as 0. */
function significant(value) {
  if (!known(value)) return '–';
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 0.001 && size < 1000) return value.toPrecision(3);
  const [digits, power] = value.toExponential(2).split('e');
  return `${digits}·10${[...String(Number(power))].map((digit) => digit === '-' ? '⁻' : '⁰¹²³⁴⁵⁶⁷⁸⁹'[digit]).join('')}`;
}

const cell = (value, kind = 'number') => make('td', { class: kind }, value);
function fillTable(id, heads, bodies) {
  const head = heads.map(([text, kind]) => make('th', { scope: 'col', class: kind ?? 'number' }, text));
  byId(id).append(make('thead', {}, make('tr', {}, ...head)), ...bodies.map((rows) => make('tbody', {}, ...rows)));
}

/** Radio buttons or check boxes that look like a row of pills. */
function choices(legend, type, options, chosen, change) {
  return make('fieldset', {}, make('legend', {}, legend), make('div', { class: 'choices' }, ...options.map((text, index) =>
    make('label', {}, make('input', { type, name: legend, checked: chosen(index), change: (event) => change(index, event.target) }),
      name(shorten(text, 40))))));
}

// ---------------------------------------------------------------- what the data say

const { summary = [], trials = [], examples = [], differences = [], task } = payload;
const { metric } = task;
const ordered = payload.model === 'recurrent'; // it knows the order of its input without an encoding
if (ordered) task.ceiling = task.ceiling_sentence = null; // which is of models that do not
const exact = metric.name === 'exact_match';
const title = metric.title.replace(/^[a-z](?=[a-z ]+$)/, (letter) => letter.toUpperCase());
const better = metric.higher ? 'higher is better' : 'lower is better';
const allModels = examples.flatMap((example) => example.models);

/** A model is blind to positions when equal digits get equal rows in every encoder head. */
function isBlind(model) {
  const values = model.sites.flatMap((site) => site.equal_rows ?? []).filter(known);
  return values.length > 0 && values.every((value) => value === 0);
}
const bare = allModels.find(isBlind)?.encoding ?? (summary.some((row) => row.encoding === 'none') ? 'none' : null);
const ranked = [...summary].sort((first, second) => (second.mean - first.mean) * (metric.higher ? 1 : -1));
const encodings = unique([...summary, ...trials, ...allModels].map((item) => item.encoding));
const others = encodings.filter((encoding) => encoding !== bare);
const toneOf = (encoding) => encoding === bare ? 0 : (others.indexOf(encoding) % 6) + 1;
const DASHES = ['2 4', '', '9 4', '9 3 2 3', '5 3', '14 4', '14 3 2 3 2 3'];
const MARKS = ['M-5 0H5M0-5V5', 'M-4.5-4.5h9v9h-9z', 'M0-5.5L5 4.5H-5z', 'M0-6L6 0 0 6-6 0z', 'M0 5.5L5-4.5H-5z',
  'M-6-2.5h12v5H-6z', 'M-2.5-6h5v12h-5z'];

const toned = (encoding, node) => { node.style.setProperty('--tone', `var(--tone-${toneOf(encoding)})`); return node; };

/** The means of some encodings, in the order given; of many, how many more there are. */
function several(rows, written) {
  const named = rows.slice(0, rows.length > 4 ? 3 : 4).flatMap((row, index) => [index ? ', ' : '', name(row.encoding), ` ${written(row.mean)}`]);
  return rows.length > 4 ? [...named, `, and ${rows.length - 3} more below`] : named;
}

/** One sentence, as text and name nodes. */
function headline() {
  const best = ranked[0];
  if (!best) return [payload.title];
  const without = ranked.find((row) => row.encoding === bare);
  const ceiling = task.ceiling?.all;
  if (!exact) {
    return [`${title} on unseen data (${better}): `, ...several(ranked, shown), '.'];
  }
  if (!without || without === best || ordered) {
    const rest = several(ranked.slice(1), percent);
    return ['On unseen problems, ', name(best.encoding), ` answers ${percent(best.mean)} exactly`, rest.length ? ', ' : '', ...rest, '.'];
  }
  const bound = !known(ceiling) ? '' : without.mean <= ceiling ? `, and cannot do better than ${percent(ceiling)}`
    : `, above the computed ceiling of ${percent(ceiling)}: luck of the sample, or a leak`;
  return [`Told where each character stands, the model solves ${percent(best.mean)} of unseen problems (`, name(best.encoding),
    `); not told, it solves ${percent(without.mean)} (`, name(bare), `)${bound}.`];
}

/** Words for metrics other than exact match. */
function reword() {
  for (const part of document.querySelectorAll('header, main')) {
    const words = document.createTreeWalker(part, NodeFilter.SHOW_TEXT);
    while (words.nextNode()) words.currentNode.data = words.currentNode.data.replaceAll('character', 'token');
  }
  const texts = { kind: ordered ? 'A recurrent network' : 'A small neural network', 'accuracy-link': 'Results', 'accuracy-title': 'How good the models are', metric: metric.title, meaning: `: ${better}.`,
    'match-title': `${title} on held-out data`, 'loss-title': 'Loss in training' };
  for (const [id, text] of Object.entries(texts)) byId(id).replaceChildren(text);
}

function fillHeader() {
  byId('title').append(payload.title);
  byId('headline').append(...headline());
  byId('encodings').append(...encodings.flatMap((encoding, index) => [index ? ', ' : '', name(encoding)]));
  byId('bare').hidden = bare === null;
  byId('bare-name').append(bare ?? '');
  byId('example').hidden = !examples.length;
  if (exact && ordered) byId('kind').replaceChildren('A recurrent network, a small neural network,');
  for (const part of document.querySelectorAll('[data-model]')) part.hidden = part.dataset.model !== payload.model;
  if (payload.model === 'vit') {
    byId('example-reads').replaceChildren('looks at the held-out picture');
    byId('example-writes').replaceChildren('say');
  }
  byId('whose').append(examples.length ? 'Its attention' : 'Attention');
  byId('example-input').append(examples[0]?.input ?? '');
  byId('example-right').hidden = !known(examples[0]?.expected);
  byId('example-answer').append(examples[0]?.expected ?? '');
}

// ---------------------------------------------------------------- bars

/** Horizontal bars from 0 to 100 % or the largest value. Rows: encoding, value, low, high, dots. */
function bars(box, label, rows, ceiling, ceilingLabel) {
  const width = Math.max(260, box.clientWidth);
  const names = rows.map((row) => shorten(row.encoding, width < 500 ? 12 : 22));
  const left = Math.max(40, ...names.map((name) => [...name].length * 8.2)) + 10;
  const hasDots = rows.some((row) => row.dots?.length);
  const step = hasDots ? 50 : 32;
  const right = rows.some((row) => known(row.low)) ? Math.max(112, ...rows.map((row) => 14 + 6.4 * range(row.low, row.high).length)) : 70;
  const top = known(ceiling) ? 24 : 6;
  const bottom = top + rows.length * step;
  const values = rows.flatMap((row) => [row.value, row.high, ...(row.dots ?? []).map((dot) => dot.value)]).filter(known);
  const end = metric.share ? 1 : largest([0, ...values]) || 1;
  const x = (value) => left + clamp(value / end, 0, 1) * (width - left - right);
  const words = rows.map((row) => `${row.encoding} ${shown(row.value)}`).join(', ');
  const image = draw('svg', { width, height: bottom + 24, viewBox: `0 0 ${width} ${bottom + 24}`, role: 'img',
    'aria-label': `${label}: ${words}${known(ceiling) ? `; ${ceilingLabel}` : ''}` });
  const ticks = width < 420 ? 2 : 4;
  for (const value of metric.share ? Array.from({ length: ticks + 1 }, (_, index) => index / ticks) : roundTicks(end, ticks)) {
    const text = metric.share ? `${100 * value}${value ? '' : '\u00a0%'}` : compact(value);
    image.append(draw('line', { class: 'axis', x1: x(value), x2: x(value), y1: top, y2: bottom + 4 }),
      draw('text', { class: 'small', x: x(value), y: bottom + 19, 'text-anchor': 'middle' }, text));
  }
  rows.forEach((row, index) => {
    const y = top + index * step + (hasDots ? 19 : 16);
    const group = toned(row.encoding, draw('g', {},
      draw('text', { class: 'strong', x: left - 10, y: y + 5, 'text-anchor': 'end' }, names[index], draw('title', {}, row.encoding)),
      draw('text', { class: 'strong', x: x(end) + 12, y: y + 5 }, shown(row.value))));
    if (known(row.value)) group.append(draw('rect', { class: 'bar', x: x(0), y: y - 8, height: 16, width: x(row.value) - x(0) }));
    if (known(row.low) && known(row.high)) {
      const [low, high] = [x(row.low), x(row.high)];
      group.append(draw('path', { class: 'whisker', d: `M${low} ${y}H${high}M${low} ${y - 5}v10M${high} ${y - 5}v10` }),
        draw('text', { class: 'small', x: x(end) + 12, y: y + 21 }, range(row.low, row.high)));
    }
    for (const dot of row.dots ?? []) {
      group.append(draw('circle', { class: 'dot', cx: x(dot.value), cy: y + 17, r: 3.5 },
        draw('title', {}, `seed ${dot.seed}: ${shown(dot.value)}`)));
    }
    image.append(group);
  });
  if (known(ceiling)) {
    const flip = ceiling > 0.5;
    const place = { x: x(ceiling) + (flip ? -6 : 6), y: 14, 'text-anchor': flip ? 'end' : 'start' };
    image.append(draw('line', { class: 'ceiling', x1: x(ceiling), x2: x(ceiling), y1: 4, y2: bottom + 4 }),
      draw('text', { class: 'ceiling-label', ...place }, ceilingLabel));
  }
  box.replaceChildren(image);
}

function drawBars() {
  const ceiling = task.ceiling ?? {};
  bars(byId('bars'), title, summary.map((row) => ({ ...row, value: row.mean,
    dots: trials.filter((trial) => trial.encoding === row.encoding && known(trial.value)) })), ceiling.all,
  `${shown(ceiling.all)} ceiling: the most without positions`);
  const groups = (task.groups ?? []).filter((group) => group !== 'all' && summary.some((row) => known(row.groups?.[group])));
  byId('group-bars').replaceChildren(...groups.map((group) => make('figure', {},
    make('h3', {}, exact ? 'Only problems with “' : 'Only “', name(group), '”'), make('div', { class: 'chart' }))));
  groups.forEach((group, index) => bars(byId('group-bars').children[index].lastChild, `${title} for ${group}`,
    summary.map((row) => ({ encoding: row.encoding, value: row.groups?.[group] })), ceiling[group],
    `${shown(ceiling[group])} ceiling without positions`));
}

function fillAccuracy() {
  const interval = unique(summary.filter((row) => known(row.low)).map((row) => row.interval)).join('; ');
  byId('task').append(`The ${task.name} task: ${task.sentence}. Scored on ${whole(task.held_out)} held-out `
    + `${exact ? 'problems' : 'examples'}, set apart from those to train on.`);
  byId('interval-kind').append(interval);
  byId('interval').hidden = !interval;
  byId('no-interval').hidden = Boolean(interval);
  byId('ceiling').append(task.ceiling_sentence ?? '');
  byId('ceiling').hidden = !task.ceiling_sentence;
  const points = (value) => known(value) ? (value > 0 ? '+' : '')
    + (metric.share ? 100 * value : value).toFixed(metric.share ? 2 : metric.digits).replace('-', '−') : '–';
  byId('points').hidden = !metric.share;
  byId('ranking').hidden = !differences.length;
  byId('no-ranking').hidden = differences.length > 0;
  fillTable('ranking-table', [['Pair', 'wrap'], ['Difference'], ['Interval'], ['Conclusion', 'wrap']],
    [differences.map((row) => make('tr', {}, make('th', { scope: 'row' }, name(row.first), ' − ', name(row.second)),
      cell(points(row.difference)), cell(known(row.low) ? `${points(row.low)} to ${points(row.high)}` : '–'),
      cell(row.verdict, 'wrap')))]);
  const groups = (task.groups ?? []).filter((group) => group !== 'all');
  const groupHeads = groups.map((group) => [name(group)]);
  fillTable('summary-table', [['Encoding', 'wrap'], ['Trials'], [title], ['Interval'], ...groupHeads, ['Parameters'],
    ['Seconds per step']], [summary.map((row) => make('tr', {}, make('th', { scope: 'row' }, name(row.encoding)),
    cell(whole(row.trials)), cell(shown(row.mean)), cell(range(row.low, row.high)),
    ...groups.map((group) => cell(shown(row.groups?.[group]))), cell(whole(row.parameters)), cell(significant(row.seconds_per_step))))]);
}

// ---------------------------------------------------------------- attention maps

const state = { example: examples[0], shown: new Set(), kind: '', layer: 0, head: 0, fullRange: true, top: 1, together: false,
  query: null, key: null };
const VIRIDIS = '440154481769472a7a433d843d4e8a355e8d2e6d8e297b8e23898e1f978b21a5852eb37c46c06f65cb5e89d548b0dd2fd8e219fde725'
  .match(/.{6}/g).map((stop) => stop.match(/../g).map((part) => parseInt(part, 16)));

/** 256 colours, [red, green, blue, opaque], between the stops above. */
const PALETTE = Array.from({ length: 256 }, (_, index) => {
  const place = index / 255 * (VIRIDIS.length - 1);
  const stop = Math.min(Math.floor(place), VIRIDIS.length - 2);
  return [...VIRIDIS[stop].map((low, channel) => low + (VIRIDIS[stop + 1][channel] - low) * (place - stop)), 255];
});

const decoded = new WeakMap();
/** All weights of a site (one attention of one layer), order head, query, key. */
function weightsOf(site) {
  if (!decoded.has(site)) {
    const bytes = Uint8Array.from(atob(site.weights), (letter) => letter.charCodeAt(0));
    const view = new DataView(bytes.buffer); // the file is little-endian, the reader's machine may not be
    const values = Float64Array.from({ length: bytes.length / 2 }, (_, index) => view.getUint16(2 * index, true) / 65535);
    if (values.length !== site.heads * site.query.length * site.key.length) throw new Error(`${site.name}: weights and tokens do not fit`);
    decoded.set(site, values);
  }
  return decoded.get(site);
}
const weightAt = (site, head, query, key) => weightsOf(site)[(head * site.query.length + query) * site.key.length + key];

function nameOf(model, models = state.example.models) {
  const several = models.filter((other) => other.encoding === model.encoding).length > 1;
  return several ? `${model.encoding}, seed ${model.seed}` : model.encoding;
}
const shownModels = () => state.example.models.filter((_, index) => state.shown.has(index));
const sitesOf = (model) => model.sites.filter((site) => site.kind === state.kind);

/** Positions of each digit that occurs more than once, or nothing where that is not the question. */
function equalDigits(site) {
  if (!site.equal_rows?.some(known)) return [];
  return unique(site.query).filter((text) => /^[0-9]$/.test(text))
    .map((text) => site.query.flatMap((other, index) => other === text ? [index] : [])).filter((places) => places.length > 1);
}

const withDigits = examples.find(({ models }) => models.some((model) => model.sites.some((site) => equalDigits(site).length)));

/** The order of the rows on screen: as read, or equal digits next to each other. */
function rowOrder(site) {
  const grouped = state.together ? equalDigits(site).flat() : [];
  return [...grouped, ...site.query.keys()].filter((place, index, all) => all.indexOf(place) === index);
}

/** The number of the colour of a value 0..1. */
const step = (value) => Math.round(255 * clamp(value, 0, 1));

/** A canvas with one pixel per value 0..1. */
function pixels(columns, rows, valueAt, attributes = {}) {
  const canvas = make('canvas', { width: columns, height: rows, ...attributes });
  const context = canvas.getContext('2d');
  const image = context.createImageData(columns, rows);
  for (let at = 0; at < columns * rows; at += 1) {
    image.data.set(PALETTE[step(valueAt(Math.floor(at / columns), at % columns))], 4 * at);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/**
 * The same as a picture: hundreds of canvases make a page slow. It is written as a bitmap file (BMP) byte by byte, since
 * browsers that guard privacy add noise to what a page reads back from a canvas.
 */
function picture(columns, rows, valueAt) {
  const [start, stride] = [54 + 4 * 256, Math.ceil(columns / 4) * 4];
  const bytes = new Uint8Array(start + stride * rows);
  const view = new DataView(bytes.buffer);
  bytes.set([0x42, 0x4d]);
  // file size, where the pixels start, header size, width, height (negative: from the top down), 1 plane of 8 bits
  const header = { 2: bytes.length, 10: start, 14: 40, 18: columns, 22: -rows, 26: 1 + (8 << 16) };
  for (const [at, value] of Object.entries(header)) view.setInt32(at, value, true);
  PALETTE.forEach(([red, green, blue], index) => bytes.set([blue, green, red], 54 + 4 * index));
  for (let row = 0; row < rows; row += 1) {
    for (let column = 0; column < columns; column += 1) bytes[start + row * stride + column] = step(valueAt(row, column));
  }
  const text = Array.from(bytes, (byte) => String.fromCharCode(byte)).join('');
  return make('img', { alt: '', width: columns, height: rows, src: `data:image/bmp;base64,${btoa(text)}` });
}

/** The map of a head: query down, key across. */
const paint = (how, site, head, order) => how(site.key.length, order.length,
  (row, column) => weightAt(site, head, order[row], column) / state.top);

function chooseExample(example) {
  Object.assign(state, { example, query: null, key: null });
  const { models } = example;
  const kinds = unique(models.flatMap((model) => model.sites.map((site) => site.kind)));
  if (!kinds.includes(state.kind)) state.kind = kinds[0];
  if (state.shown.size) return; // the models are the same in every example
  const best = ranked.map((row) => models.findIndex((model) => model.encoding === row.encoding));
  const wanted = [models.findIndex((model) => model.encoding === bare), ...best, ...models.keys()].filter((index) => index >= 0);
  state.shown = new Set(unique(wanted).slice(0, 2));
}

/** Open with the head in which any shown model tells equal digits apart most. */
function chooseHead() {
  let best = 0;
  for (const model of withDigits ? shownModels() : []) {
    sitesOf(model).forEach((site, layer) => site.equal_rows?.forEach((value, head) => {
      if (known(value) && value > best) { best = value; Object.assign(state, { layer, head }); }
    }));
  }
  byId('large-note').hidden = best === 0;
}

function drawControls() {
  const { models } = state.example;
  const kinds = unique(models.flatMap((model) => model.sites.map((site) => site.kind)));
  const pick = make('select', { change: (event) => { chooseExample(examples[event.target.value]); drawMaps(); } },
    ...examples.map((example, index) => make('option', { value: index, selected: example === state.example },
      shorten(example.input, 60) + (known(example.expected) ? ` → ${shorten(example.expected, 30)}` : ''))));
  byId('controls').replaceChildren(make('label', {}, make('span', {}, 'Example input → right answer'), pick),
    choices('Models side by side', 'checkbox', models.map((model) => nameOf(model)), (index) => state.shown.has(index), (index, box) => {
      if (box.checked) state.shown.add(index);
      else if (state.shown.size > 1) state.shown.delete(index);
      box.checked = state.shown.has(index); // the last one stays
      drawMaps();
    }),
    choices('Attention', 'radio', kinds, (index) => kinds[index] === state.kind, (index) => {
      Object.assign(state, { kind: kinds[index], query: null, key: null });
      drawMaps();
    }),
    choices('Colour scale', 'radio', ['0 to 1', '0 to largest shown'], (index) => state.fullRange === (index === 0),
      (index) => { state.fullRange = index === 0; drawMaps(); }),
    ...(withDigits ? [choices('Rows', 'radio', ['as read', 'equal digits together'], (index) => state.together === (index === 1),
      (index) => { state.together = index === 1; drawMaps(); })] : []));
}

function drawMaps() {
  state.top = state.fullRange ? 1 : largest(shownModels().flatMap(sitesOf).map((site) => largest(weightsOf(site)))) || 1;
  const place = ['cross', 'decoder', 'encoder'].find((word) => state.kind.includes(word));
  for (const note of document.querySelectorAll('[data-kind]')) note.hidden = note.dataset.kind !== place;
  const top = compact(state.top);
  const scale = pixels(256, 1, (_, column) => column / 255, { role: 'img', 'aria-label': `Colour scale from 0, dark, to ${top}, bright` });
  byId('legend').replaceChildren(scale, ...['0', compact(state.top / 2), `${top} (weight)`].map((text) => make('span', {}, text)));
  byId('overview').replaceChildren(...shownModels().map(overview));
  drawLarge();
}

function panelHead(model) {
  const judged = make('span', { class: model.correct ? 'right' : 'wrong' }, model.correct ? ' ✓ right' : ' ✗ wrong');
  return [make('h4', {}, name(nameOf(model))),
    make('p', { class: 'answer' }, 'answers ', token(model.answer), known(model.correct) ? judged : null)];
}

/** The grid of all heads of a model: one tab stop, arrow keys move inside. */
function overview(model) {
  const sites = sitesOf(model);
  const heads = Math.max(1, ...sites.map((site) => site.heads));
  const grid = make('div', { class: 'heads', role: 'group', 'aria-label': `${nameOf(model)}: all heads` }, make('span'),
    ...Array.from({ length: heads }, (_, head) => make('span', {}, String(head))));
  grid.style.setProperty('--heads', heads);
  const at = (layer, head) => grid.querySelector(`[data-layer="${layer}"][data-head="${head}"]`);
  sites.forEach((site, layer) => {
    grid.append(make('span', {}, String(layer)));
    for (let head = 0; head < heads; head += 1) {
      grid.append(head >= site.heads ? make('span') : make('button', { type: 'button', 'data-layer': layer, 'data-head': head,
        'aria-label': `${nameOf(model)}, layer ${layer}, head ${head}`,
        click: () => enlarge(layer, head),
        keydown: (event) => {
          const [down, across] = arrow(event);
          const next = at(layer + down, head + across);
          if (!next || next === event.currentTarget) return;
          event.preventDefault();
          focusOnly(grid, next);
          next.focus();
        } }, paint(picture, site, head, [...site.query.keys()])));
    }
  });
  focusOnly(grid, at(state.layer, state.head) ?? at(0, 0));
  return toned(model.encoding, make('div', { class: 'panel' }, ...panelHead(model), grid));
}

function focusOnly(grid, chosen) {
  for (const button of grid.querySelectorAll('button')) button.tabIndex = button === chosen ? 0 : -1;
}

/** [rows down, columns across] of an arrow key. */
const arrow = (event) => event.altKey || event.ctrlKey || event.metaKey ? [0, 0]
  : ({ ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] })[event.key] ?? [0, 0];

function enlarge(layer, head) {
  Object.assign(state, { layer, head });
  byId('large-note').hidden = true;
  drawLarge();
  byId('large-title').scrollIntoView({ block: 'nearest' });
}

let boards = []; // the enlarged maps on screen

function drawLarge() {
  for (const button of byId('overview').querySelectorAll('button')) {
    const { layer, head } = button.dataset;
    button.setAttribute('aria-pressed', Number(layer) === state.layer && Number(head) === state.head);
  }
  byId('large-title').replaceChildren(`Layer ${state.layer}, head ${state.head}, enlarged`);
  boards = [];
  byId('large').replaceChildren(...shownModels().map(large));
  fitBoards();
  moveCross();
}

function large(model) {
  const site = sitesOf(model)[state.layer];
  const panel = toned(model.encoding, make('figure', { class: 'panel beside' }, make('h4', {}, name(nameOf(model)))));
  if (!site || state.head >= site.heads) return fill(panel, {}, [make('p', { class: 'note' }, 'This model has no such head.')]);
  const order = rowOrder(site);
  const tall = site.key.some((text) => [...text].length > 2) ? 'tall' : '';
  const keys = make('div', { class: `keys ${tall}`, 'aria-hidden': 'true' }, ...site.key.map(token));
  const queries = make('div', { class: 'queries', 'aria-hidden': 'true' }, ...order.map((place) => token(site.query[place])));
  const field = make('div', { class: 'field', tabindex: 0, role: 'application', 'aria-roledescription': 'attention map',
    'aria-label': `${nameOf(model)}, layer ${state.layer}, head ${state.head}: ${site.query.length} queries down, `
      + `${site.key.length} keys across. Arrow keys read the weights.` },
  paint(pixels, site, state.head, order), ...['row', 'column', 'spot'].map((part) => make('div', { class: `cross ${part}` })));
  const board = { model, site, order, keys, queries, field, panel, brackets: equalDigits(site) };
  const point = (event) => {
    const area = field.getBoundingClientRect();
    const row = clamp(Math.floor((event.clientY - area.top) / area.height * order.length), 0, order.length - 1);
    setCross(order[row], clamp(Math.floor((event.clientX - area.left) / area.width * site.key.length), 0, site.key.length - 1));
  };
  fill(field, { pointermove: point, pointerdown: point, focus: () => { if (state.query === null) setCross(order[0], 0); },
    keydown: (event) => {
      const [down, across] = arrow(event);
      if (!down && !across) return;
      event.preventDefault();
      const row = clamp(Math.max(0, order.indexOf(state.query)) + down, 0, order.length - 1);
      setCross(order[row], clamp(state.key + across, 0, site.key.length - 1));
      field.querySelector('.spot').scrollIntoView({ block: 'nearest', inline: 'nearest' });
    } }, []);
  board.lanes = draw('svg', { class: 'brackets', 'aria-hidden': 'true' });
  boards.push(board);
  // maps too wide for their frame move together
  const scroll = (event) => { for (const other of boards) other.field.closest('.scroll').scrollLeft = event.target.scrollLeft; };
  return fill(panel, {}, [make('div', { class: 'scroll', scroll }, make('div', { class: 'board' },
    make('span', { class: 'axis-title' }, 'query ↓  key →'), make('span'), keys, make('span'), queries, field, board.lanes)),
  make('figcaption', {}, verdict(site), trust(site.trust ?? {}))]);
}

function verdict(site) {
  const digits = equalDigits(site).map((places) => site.query[places[0]]);
  const value = site.equal_rows?.[state.head];
  if (!digits.length || !known(value)) return null;
  const words = value === 0 ? 'identical, difference 0' : `differ by up to ${significant(value)}`;
  return make('p', {}, `Rows of equal digits (${listed(digits)}, joined by brackets): `,
    make('strong', { class: value === 0 ? 'zero' : '' }, words), '.');
}

/** In words, how far the drawn weights can be trusted. */
function trust({ row_sum_error: sum, masked_weight: masked, rebuild_error: rebuild }) {
  const parts = [known(sum) && `each row adds up to 1 (largest error ${significant(sum)})`,
    known(masked) && `weight on places that must not be looked at: ${significant(masked)}`,
    known(rebuild) && `weights times values give the recorded output (largest error ${significant(rebuild)})`].filter(Boolean);
  return parts.length ? make('p', {}, `Checked in this layer: ${parts.join('; ')}.`) : null;
}

/** One cell size for all enlarged maps, so that they can be compared; brackets need it too. */
function fitBoards() {
  if (!boards.length) return;
  const taken = 4 + Math.max(...boards.map((board) => board.queries.offsetWidth + 12 + 9 * board.brackets.length));
  const columns = Math.max(...boards.map((board) => board.site.key.length));
  const size = clamp(Math.floor((boards[0].panel.clientWidth - taken) / columns), 13, 40);
  byId('large').style.setProperty('--cell', `${size}px`);
  for (const { site, order, field, lanes, brackets } of boards) {
    field.style.setProperty('--keys', site.key.length);
    field.style.setProperty('--queries', site.query.length);
    const [width, height] = [9 * brackets.length + 2, size * order.length];
    fill(lanes, { width, height, viewBox: `0 0 ${width} ${height}` }, []);
    lanes.replaceChildren(...brackets.map((places, lane) => {
      const ys = places.map((place) => (order.indexOf(place) + 0.5) * size);
      const x = 9 * lane + 7;
      return draw('path', { d: `M${x} ${Math.min(...ys)}V${Math.max(...ys)}${ys.map((y) => `M${x - 6} ${y}H${x}`).join('')}` });
    }));
  }
}

function setCross(query, key) {
  if (query === state.query && key === state.key) return;
  Object.assign(state, { query, key });
  moveCross();
}

function moveCross() {
  const { query, key } = state;
  const values = [];
  let texts = null;
  for (const { model, site, order, keys, queries, field } of boards) {
    const inside = query !== null && query < site.query.length && key < site.key.length;
    const row = order.indexOf(query);
    field.style.setProperty('--row', row);
    field.style.setProperty('--column', key);
    for (const line of field.querySelectorAll('.cross')) line.hidden = !inside;
    [...queries.children].forEach((item, index) => item.classList.toggle('on', inside && index === row));
    [...keys.children].forEach((item, index) => item.classList.toggle('on', inside && index === key));
    if (!inside) continue;
    texts ??= [site.query[query], site.key[key]];
    values.push([values.length ? '; ' : '', name(nameOf(model)), ` ${weightAt(site, state.head, query, key).toFixed(4)}`]);
  }
  byId('readout').replaceChildren(...(texts ? ['From ', token(texts[0]), ` (query ${query}) to `, token(texts[1]),
    ` (key ${key}), weight: `, ...values.flat()] : ['Point at a map, or move to it with Tab and use the arrow keys, to read a weight.']));
}

// ---------------------------------------------------------------- table of equal digits

function fillRows() {
  byId('rows').hidden = !withDigits;
  if (!withDigits) return;
  const { models, input } = withDigits;
  const bodies = models.map((model) => {
    const sites = model.sites.filter((site) => site.equal_rows?.some(known));
    const title = make('th', { scope: 'rowgroup', rowspan: sites.length }, name(nameOf(model, models)));
    return sites.map((site, layer) => make('tr', {}, layer ? null : title, make('th', { scope: 'row', class: 'number' }, String(layer)),
      ...site.equal_rows.map((value) => cell(significant(value), value === 0 ? 'number zero' : 'number'))));
  });
  const heads = Math.max(...models.flatMap((model) => model.sites.map((site) => site.heads)));
  byId('rows-input').append(input);
  fillTable('rows-table', [['Encoding', 'wrap'], ['Layer'], ...Array.from({ length: heads }, (_, head) => [`Head ${head}`])], bodies);
}

// ---------------------------------------------------------------- learning curves

const curveState = { axis: 'examples' };
const AXES = { examples: 'training examples seen', cpu_seconds: 'CPU seconds' };

/** Round numbers from 0 to at most `high`. */
function roundTicks(high, count) {
  const power = 10 ** Math.floor(Math.log10(high / count));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= high / count);
  return Array.from({ length: Math.floor(high / step + 1e-9) + 1 }, (_, index) => index * step);
}

/** Powers of ten from 10^low to 10^high, with 2 and 5 between them where there is room. */
function powerTicks(low, high) {
  const powers = Array.from({ length: Math.ceil(high) - Math.floor(low) + 1 }, (_, index) => 10 ** (Math.floor(low) + index));
  const ticks = powers.flatMap((power) => (high - low < 1.6 ? [1, 2, 5] : [1]).map((factor) => factor * power));
  return ticks.filter((tick) => Math.log10(tick) >= low && Math.log10(tick) <= high);
}

/** Lines with their names at the right end. `logarithmic` asks for powers of ten on the y axis. */
function lines(box, label, field, format, { top, logarithmic, ceiling } = {}) {
  const series = trials.map((trial) => ({ encoding: trial.encoding, points: trial.curve
    .filter((point) => known(point[field]) && known(point[curveState.axis]) && !(logarithmic && point[field] <= 0))
    .map((point) => [point[curveState.axis], point[field]]) })).filter((one) => one.points.length);
  if (!series.length) { box.replaceChildren('Nothing was recorded.'); return; }
  const width = Math.max(260, box.clientWidth);
  const [height, left, upper] = [clamp(width * 0.6, 240, 330), 46, 12];
  const names = unique(series.map((one) => one.encoding));
  const right = Math.max(...names.map((name) => [...shorten(name, 18)].length)) * 7.8 + 30;
  const all = series.flatMap((one) => one.points);
  const xTop = largest(all.map((point) => point[0])) || 1;
  const scale = logarithmic ? Math.log10 : (value) => value;
  const values = all.map(([, y]) => scale(y));
  const [yLow, yTop] = [logarithmic ? smallest(values) : 0, top ?? (largest(values) || 1)];
  const x = (value) => left + value / xTop * (width - left - right);
  const y = (value) => height - 42 - (scale(value) - yLow) / (yTop - yLow || 1) * (height - 42 - upper);
  const image = draw('svg', { width, height, viewBox: `0 0 ${width} ${height}`, role: 'img' });
  for (const value of logarithmic ? powerTicks(yLow, yTop) : roundTicks(yTop, 4)) {
    image.append(draw('line', { class: 'axis', x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      draw('text', { class: 'small', x: left - 7, y: y(value) + 4, 'text-anchor': 'end' }, format(value)));
  }
  for (const value of roundTicks(xTop, width < 420 ? 2 : 4)) {
    image.append(draw('text', { class: 'small', x: x(value), y: height - 24, 'text-anchor': 'middle' }, compact(value)));
  }
  image.append(draw('text', { class: 'small', x: x(xTop / 2), y: height - 5, 'text-anchor': 'middle' }, AXES[curveState.axis]));
  if (known(ceiling)) {
    image.append(draw('line', { class: 'ceiling', x1: left, x2: width - right, y1: y(ceiling), y2: y(ceiling) }),
      draw('text', { class: 'ceiling-label', x: width - right - 12, y: y(ceiling) - 8, 'text-anchor': 'end' }, `${shown(ceiling)} ceiling`));
  }
  const ends = names.map((encoding) => {
    const own = series.filter((one) => one.encoding === encoding);
    const tone = toneOf(encoding);
    for (const { points } of own) {
      const path = points.map((point) => `${x(point[0]).toFixed(1)} ${y(point[1]).toFixed(1)}`).join('L');
      image.append(toned(encoding, draw('path', { class: 'line', 'stroke-dasharray': DASHES[tone], d: `M${path}` })));
    }
    const last = own.map((one) => one.points.at(-1)).sort((first, second) => first[1] - second[1])[Math.floor(own.length / 2)];
    return { encoding, tone, last, at: y(last[1]) };
  }).sort((first, second) => first.at - second.at);
  // names keep their distance: push down first, then up from the floor
  ends.forEach((end, index) => { if (index) end.at = Math.max(end.at, ends[index - 1].at + 17); });
  [...ends].reverse().forEach((end, index, turned) => { end.at = Math.min(end.at, index ? turned[index - 1].at - 17 : height - 42); });
  for (const { encoding, tone, last, at } of ends) {
    const [endX, endY] = [x(last[0]), y(last[1])];
    image.append(toned(encoding, draw('g', {}, draw('line', { class: 'leader', x1: endX, y1: endY, x2: width - right + 18, y2: at }),
      draw('path', { class: 'mark', d: MARKS[tone], transform: `translate(${endX} ${endY})` }),
      draw('text', { class: 'line-label', x: width - right + 21, y: at + 4 }, shorten(encoding, 18), draw('title', {}, encoding)))));
  }
  const words = ends.map((end) => `${end.encoding} ${format(end.last[1])}`).join(', ');
  image.setAttribute('aria-label', `${label} against ${AXES[curveState.axis]}. At the end: ${words}.`);
  box.replaceChildren(image);
}

function drawCurves() {
  const wide = (field) => {
    const values = trials.flatMap((trial) => trial.curve.map((point) => point[field])).filter((value) => value > 0);
    return values.length > 0 && largest(values) / smallest(values) > 30;
  };
  const [match, loss] = [!metric.higher && wide('value'), wide('loss')];
  byId('match-logarithmic').hidden = !match;
  byId('logarithmic').hidden = !loss;
  const share = (value) => `${compact(100 * value)}\u00a0%`;
  lines(byId('match-curve'), title, 'value', metric.share ? share : compact,
    { top: metric.share ? 1 : null, logarithmic: match, ceiling: task.ceiling?.all });
  lines(byId('loss-curve'), 'Loss', 'loss', compact, { logarithmic: loss });
}

// ---------------------------------------------------------------- what was run

function fillRun() {
  byId('what-ran').append(...Object.entries(payload.what_ran ?? {}).flatMap(([term, value]) => [make('dt', {}, term.replaceAll('_', ' ')),
    make('dd', {}, make(term === 'command' ? 'code' : 'span', { dir: 'auto' }, typeof value === 'object' ? JSON.stringify(value) : String(value)))]));
  fillTable('trial-table', [['Encoding', 'wrap'], ['Seed'], [title], ['Best'], ['CPU seconds'], ['Examples'], ['Run', 'wrap']],
    [trials.map((trial) => make('tr', {}, make('th', { scope: 'row' }, name(trial.encoding)), cell(String(trial.seed)),
      cell(shown(trial.value)), cell(shown(trial.best_value)), cell(whole(trial.cpu_seconds)),
      cell(whole(trial.examples)), cell(name(trial.run), 'wrap')))]);
}

// ---------------------------------------------------------------- start

if (!exact) reword();
fillHeader();
fillAccuracy();
fillRows();
fillRun();
byId('curve-controls').append(choices('Drawn against', 'radio', Object.values(AXES), (index) => index === 0,
  (index) => { curveState.axis = Object.keys(AXES)[index]; drawCurves(); }));
let width = 0;
new ResizeObserver(() => {
  if (document.body.clientWidth === width) return; // drawing changes the height, never the width
  width = document.body.clientWidth;
  drawBars();
  drawCurves();
  fitBoards();
}).observe(document.body);
addEventListener('beforeprint', () => { for (const details of document.querySelectorAll('details')) details.open = true; });

if (examples.length) {
  chooseExample(examples[0]);
  chooseHead();
  drawControls();
  drawMaps();
} else byId('why').hidden = true;
for (const link of document.querySelectorAll('nav a')) link.hidden = document.querySelector(link.hash).hidden;
