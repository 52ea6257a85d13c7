import { countTokens } from './tokens.ts';

const subjects = [
  'The first approach',
  'A careful reader',
  'This result',
  'The second measurement',
  'Most of the evidence',
  'Our example',
  'The original text',
  'A simple model',
  'The larger group',
  'Each step',
  'The café on the corner',
  'The naïve estimate',
  'A good summary',
  'The team in Zürich',
  'The committee',
  'One common mistake',
];
const verbs = [
  'shows',
  'depends on',
  'explains',
  'is close to',
  'confirms',
  'differs from',
  'leads to',
  'does not contradict',
  'is limited by',
  'improves',
  'follows from',
  'can be checked against',
];
const objects = [
  'the main idea',
  'a total of 42 cases',
  'what was asked',
  'the earlier answer',
  'three separate causes',
  'the cost of each item',
  'a difference of 7.5 %',
  'the available data',
  'the order of the steps',
  'an unexpected pattern',
  'the “usual” explanation',
  'a budget of €1,200',
];
const endings = [
  '.',
  ', which is worth noting.',
  ' in most situations.',
  ' — at least at first.',
  ', as the next point shows.',
  ', although exceptions exist.',
  ' when nothing else changes.',
  '.',
];

/** A text and its number of tokens. */
export type Prose = { text: string; tokens: number };

// Each part except a sentence's first begins with white space, before which a token always ends. The number of tokens of a
// text is therefore the sum over its parts, and no part needs to be counted again.
const counted = (text: string): Prose => ({ text, tokens: countTokens(text) });
const openings = {
  first: subjects.map((subject) => counted(subject)),
  inLine: subjects.map((subject) => counted(` ${subject}`)),
  paragraph: subjects.map((subject) => counted(`\n\n${subject}`)),
  item: subjects.map((subject) => counted(`\n- ${subject}`)),
};
const middles = verbs.map((verb) => counted(` ${verb}`));
const closings = objects.map((object) => endings.map((ending) => counted(` ${object}${ending}`)));

/**
 * Writes a few sentences of plausible prose, sometimes with a list, of about `tokenTarget` tokens. Ends at the end of a
 * sentence.
 */
export function writeText(random: () => number, tokenTarget: number): Prose {
  const asList = random() < 0.15;
  let text = '';
  let tokens = 0;
  while (tokens < tokenTarget) {
    const subject = draw(subjects.length, random);
    const middle = middles[draw(verbs.length, random)] ?? nothing;
    const object = draw(objects.length, random);
    const closing = closings[object]?.[draw(endings.length, random)] ?? nothing;
    const opening = openings[text === '' ? 'first' : separation(asList, random)][subject] ?? nothing;
    text += opening.text + middle.text + closing.text;
    tokens += opening.tokens + middle.tokens + closing.tokens;
  }
  return { text, tokens };
}

/** The length of an unlimited answer: mostly short, sometimes long, 8 to 400 tokens, about 50 on average. */
export function naturalTokenCount(random: () => number): number {
  return Math.min(400, 8 + Math.floor(-Math.log(1 - random()) * 42));
}

const nothing: Prose = { text: '', tokens: 0 };

function separation(asList: boolean, random: () => number): 'item' | 'paragraph' | 'inLine' {
  if (asList) return 'item';
  return random() < 0.1 ? 'paragraph' : 'inLine';
}

function draw(count: number, random: () => number): number {
  return Math.floor(random() * count);
}
