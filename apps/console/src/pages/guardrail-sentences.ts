import { checks } from '../../generated/checks.ts';

export type CheckDraft = { id: string; parameters: Record<string, unknown> };

/**
 * Describes in words when a check fails. The API stores the condition that must hold, so each entry is its opposite: the
 * parameters that make the check fail in that case.
 */
export type Condition = { check: string; parameters: Record<string, unknown>; text: string };

const condition = (check: string, text: string, parameters: Record<string, unknown> = {}): Condition => ({
  check,
  parameters,
  text,
});
const not = { not: true };

export const conditionGroups: readonly (readonly [label: string, conditions: readonly Condition[]])[] = [
  [
    'Words',
    [
      condition('contains', 'the message contains one of these words', { operator: 'none' }),
      condition('contains', 'the message contains all of these words', { operator: 'all', ...not }),
      condition('contains', 'the message contains none of these words', { operator: 'any' }),
      condition('contains', 'the message does not contain all of these words', { operator: 'all' }),
      condition('regexMatch', 'the message matches this pattern', not),
      condition('regexMatch', 'the message does not match this pattern'),
      condition('endsWith', 'the message ends with this text', not),
      condition('endsWith', 'the message does not end with this text'),
    ],
  ],
  [
    'Form',
    [
      condition('wordCount', 'the number of words is outside this range'),
      condition('wordCount', 'the number of words is within this range', not),
      condition('sentenceCount', 'the number of sentences is outside this range'),
      condition('sentenceCount', 'the number of sentences is within this range', not),
      condition('characterCount', 'the number of characters is outside this range'),
      condition('characterCount', 'the number of characters is within this range', not),
      condition('isAllLowerCase', 'the message has capital letters'),
      condition('isAllLowerCase', 'the message has no capital letters', not),
      condition('alluppercase', 'the message has lower-case letters'),
      condition('alluppercase', 'the message has no lower-case letters', not),
      condition('containsCode', 'the message contains a block of code in this language', not),
      condition('containsCode', 'the message contains no block of code in this language'),
      condition('validUrls', 'the message contains no URL, or an invalid one'),
      condition('validUrls', 'the message contains URLs that are all valid', not),
    ],
  ],
  [
    'JSON',
    [
      condition('jsonSchema', 'the message is not JSON that matches this schema'),
      condition('jsonSchema', 'the message is JSON that matches this schema', not),
      condition('jsonKeys', 'the message has none of these JSON keys', { operator: 'any' }),
      condition('jsonKeys', 'the message lacks one of these JSON keys', { operator: 'all' }),
      condition('jsonKeys', 'the message has one of these JSON keys, or is not JSON', { operator: 'none' }),
    ],
  ],
  [
    'The call',
    [
      condition('modelWhitelist', 'the model is not one of these'),
      condition('modelWhitelist', 'the model is one of these', not),
      condition('requiredMetadataKeys', 'the call lacks one of these metadata keys', { operator: 'all' }),
      condition('requiredMetadataKeys', 'the call has none of these metadata keys', { operator: 'any' }),
      condition('requiredMetadataKeys', 'the call has one of these metadata keys', { operator: 'none' }),
      condition('allowedRequestTypes', 'the type of the call is not allowed'),
      condition('allowedRequestTypes', 'the type of the call is allowed', not),
      condition('webhook', 'your webhook rejects it'),
      condition('jwt', 'the call has no valid token'),
      condition('jwt', 'the call has a valid token', not),
    ],
  ],
];

export const conditions: readonly Condition[] = conditionGroups.flatMap(([, group]) => group);

/** Parameters that are set by choosing a condition. */
export const isSetByCondition = (name: string): boolean => name === 'not' || name === 'operator';

/** Returns the same text for parameters under which a check fails in the same case. */
function caseOf(check: string, parameters: Record<string, unknown>): string {
  const operator = parameters['operator'] ?? checks[check]?.properties['operator']?.default;
  const isInverted = parameters['not'] === true;
  if (check === 'contains' && operator === 'none') return `any ${!isInverted}`;
  return `${String(operator)} ${isInverted}`;
}

/** The condition of a check; undefined for a check from another release. */
export const conditionOf = ({ id, parameters }: CheckDraft): Condition | undefined =>
  conditions.find((each) => each.check === id && caseOf(id, each.parameters) === caseOf(id, parameters));

/** The check with another condition. Keeps the other parameters that have the same meaning there. */
export function withCondition({ id, parameters }: CheckDraft, next: Condition): CheckDraft {
  const kept = Object.entries(parameters).filter(([name]) => id === next.check && !isSetByCondition(name));
  return { id: next.check, parameters: { ...Object.fromEntries(kept), ...next.parameters } };
}

const detailMax = 80;

function detailOf({ id, parameters }: CheckDraft): string {
  const { words, rule, keys, suffix, format, models, metadataKeys, allowedTypes, blockedTypes } = parameters;
  const named = [words, rule, keys, suffix, format, models, metadataKeys, allowedTypes, blockedTypes].flat();
  const shown = named.filter((value) => typeof value === 'string' && value !== '').join(', ');
  // The time limit of a webhook and the ages of a token are settings, not the values that are checked.
  if (id === 'webhook' || id === 'jwt') return '';
  if (shown !== '') return `: ${shown.length > detailMax ? `${shown.slice(0, detailMax)}…` : shown}`;
  const range = Object.entries(parameters).flatMap(([name, value]) =>
    typeof value === 'number' ? `${name.startsWith('min') ? 'at least' : 'at most'} ${value}` : [],
  );
  return range.length === 0 ? '' : ` (${range.join(', ')})`;
}

/** Describes a guardrail in one sentence. */
export function guardrailSentence(drafts: readonly CheckDraft[], denies: boolean): string {
  if (drafts.length === 0) return 'No checks: every call passes.';
  const parts = drafts.map((draft) => (conditionOf(draft)?.text ?? `the check ${draft.id} fails`) + detailOf(draft));
  return `${denies ? 'Reject' : 'Report'} the call when ${parts.join(', or ')}.`;
}

/** A guardrail to start from, and an example text for each of its results. */
export type Template = { name: string; check: CheckDraft; passing: string; failing: string };

export const templates: readonly Template[] = [
  {
    name: 'No API keys',
    check: {
      id: 'regexMatch',
      parameters: {
        rule:
          '\\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}|\\bslk_[A-Za-z0-9]{16,}|\\bgh[a-z]_[A-Za-z0-9]{20,}|' +
          '\\bgithub_pat_[A-Za-z0-9_]{20,}|\\bxox[a-z]-[A-Za-z0-9-]{10,}|\\bAKIA[A-Z0-9]{16}\\b|' +
          '\\bAIza[A-Za-z0-9_-]{30,}|-----BEGIN [A-Z ]*PRIVATE KEY-----',
        not: true,
      },
    },
    passing: 'How do I rotate an API key?',
    failing: 'Log in with sk-proj-4f9a8b7c6d5e4f3a2b1c0d9e.',
  },
  {
    name: 'No card numbers',
    check: { id: 'regexMatch', parameters: { rule: '\\b[3-6](?:[ -]?\\d){12,18}\\b', not: true } },
    passing: 'Order 4711 was delivered on 2026-01-02.',
    failing: 'My card is 4111 1111 1111 1111.',
  },
  {
    name: 'No forbidden words',
    check: { id: 'contains', parameters: { words: ['password'], operator: 'none' } },
    passing: 'How do I sign in?',
    failing: 'My password is swordfish.',
  },
];
