import type { CallTexts, Unreadable } from './texts/call-texts.ts';
import { checkText, isSearch, type Finding, type TextCheck } from './checks/text-checks.ts';

/** The checks of one phase that read texts, and the texts. */
export type TextWork = { checks: readonly TextCheck[]; texts: CallTexts };

export type TimedFinding = Finding & { durationMs: number };

// Longer texts are not checked, and so do not pass.
const textCharsMax = 2_000_000;

/**
 * Adds the result of each check to `judged`, in order, so that the results survive a timeout. Has no time limit itself.
 * Throws invalid_request for a pattern or a schema that cannot be used.
 */
export function checkTexts({ checks, texts }: TextWork, judged: TimedFinding[]): void {
  for (const check of checks) {
    const start = performance.now();
    const finding = judge(check, texts);
    judged.push({ ...finding, durationMs: performance.now() - start });
  }
}

/** A check passes when it passes on each of the texts that it reads. */
function judge(check: TextCheck, { said, measured, unreadable }: CallTexts): Finding {
  if (unreadable !== null && !(unreadable.isMedia && check.allowsMedia)) return unread(unreadable);
  const texts = isSearch(check) ? said : measured;
  if (texts.some((text) => text.length > textCharsMax)) {
    return { verdict: false, data: { explanation: `The text is longer than ${textCharsMax} characters.` } };
  }
  let last: Finding = { verdict: true, data: { explanation: 'There is no text to check.' } };
  const hosts: (readonly string[])[] = [];
  for (const text of texts) {
    last = checkText(check, text);
    if (last.hosts !== undefined) hosts.push(...last.hosts);
    else if (!last.verdict) return last;
  }
  return hosts.length === 0 ? last : { ...last, hosts };
}

function unread({ what, isMedia }: Unreadable): Finding {
  const found = `The request contains content that guardrails cannot read as text: ${what}.`;
  const advice = ' To allow images, audio and files without checking them, set "allow_media": true on the guardrail.';
  return { verdict: false, data: { explanation: isMedia ? found + advice : found } };
}
