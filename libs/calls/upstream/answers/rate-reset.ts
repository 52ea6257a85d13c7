const minuteMs = 60_000;
const dayMs = 86_400_000;

/**
 * Reads the time until a rate limit is full again, as OpenAI writes it (`6m0s`, `1.5s`, `20ms`), or a number of seconds, in
 * milliseconds. null: a date, or longer than a day.
 */
export function readReset(text = ''): number | null {
  if (text === '' || text.length > 20) return null;
  const time = /^\d+(?:\.\d+)?$/.test(text) ? `${text}s` : text;
  const found = /^(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?$/.exec(time);
  if (found === null) return null;
  const [, hours = 0, minutes = 0, seconds = 0, ms = 0] = found;
  const total = Number(hours) * 3_600_000 + Number(minutes) * minuteMs + Number(seconds) * 1_000 + Number(ms);
  return total <= dayMs ? total : null;
}
