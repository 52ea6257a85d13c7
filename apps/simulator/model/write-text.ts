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

/** A few sentences of plausible prose, now and then a list, of about `tokenTarget` tokens; ends at a sentence's end. */
export function writeText(random: () => number, tokenTarget: number): string {
  const asList = random() < 0.15;
  let text = '';
  for (let tokens = 0; tokens < tokenTarget;) {
    const sentence = `${pick(subjects, random)} ${pick(verbs, random)} ${pick(objects, random)}${pick(endings, random)}`;
    const added = text === '' ? sentence : separator(asList, random) + sentence;
    text += added;
    tokens += countTokens(added);
  }
  return text;
}

/** How long an answer is when nobody limits it: mostly short, sometimes long, 8 to 400 tokens, about 50 on average. */
export function naturalTokenCount(random: () => number): number {
  return Math.min(400, 8 + Math.floor(-Math.log(1 - random()) * 42));
}

function separator(asList: boolean, random: () => number): string {
  if (asList) return '\n- ';
  return random() < 0.1 ? '\n\n' : ' ';
}

function pick(words: readonly string[], random: () => number): string {
  return words[Math.floor(random() * words.length)] ?? '';
}
