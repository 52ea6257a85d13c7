// The formats of numbers and times on all pages.

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 });

export const count = (value: number | null | undefined): string => (value == null ? '–' : whole.format(value));
/** Formats large numbers like 12.3K. */
export const short = (value: number | null | undefined): string =>
  value == null ? '–' : Math.abs(value) < 10_000 ? whole.format(value) : compact.format(value);

/** Formats US cents, the unit of analytics, as dollars. */
export const money = (cents: number | null | undefined): string => usd(cents == null ? null : cents / 100);

/** Formats US dollars, the unit of records, with as many digits as a small cost needs. */
export function usd(amount: string | number | null | undefined): string {
  if (amount == null) return '–';
  const dollars = Number(amount);
  if (dollars === 0) return '$0';
  if (Math.abs(dollars) >= 1)
    return `$${dollars.toLocaleString('en', { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
  return `$${dollars.toLocaleString('en', { maximumSignificantDigits: 3 })}`;
}

/** Like `usd`, but marks answers of the simulator: their prices are made up, and you are not billed for them. */
export const usdOf = (amount: string | null, isSimulated: boolean): string =>
  amount === null || !isSimulated ? usd(amount) : `${usd(amount)} simulated`;

/** Formats US cents and shows how much of the amount is simulated. */
export function moneyOf(cents: number | null | undefined, simulated: number | undefined = 0): string {
  if (cents == null || simulated === 0) return money(cents);
  // Both are sums, which can be rounded differently.
  return simulated > cents * 0.999_999 ? `${money(cents)} simulated` : `${money(cents)}, ${money(simulated)} simulated`;
}

/** Whether a batch names the simulator for all of its lines. */
export const isOfSimulator = (model: string | null): boolean => model?.startsWith('@simulator/') === true;

export const percent = (part: number, all: number): string =>
  all === 0 ? '–' : `${((part / all) * 100).toLocaleString('en', { maximumFractionDigits: part === 0 ? 0 : 2 })}%`;

export function milliseconds(ms: number | null | undefined): string {
  if (ms == null) return '–';
  if (ms === 0) return '0 ms';
  if (ms < 1) return `${ms.toFixed(2)} ms`;
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1_000).toFixed(ms < 10_000 ? 2 : 1)} s`;
  return duration(ms);
}

/** Formats a duration like `3 min 20 s`, with its two largest units. */
export function duration(ms: number): string {
  const seconds = Math.max(0, Math.round(ms / 1_000));
  const parts = [
    [Math.floor(seconds / 86_400), 'd'],
    [Math.floor(seconds / 3_600) % 24, 'h'],
    [Math.floor(seconds / 60) % 60, 'min'],
    [seconds % 60, 's'],
  ] as const;
  const first = parts.findIndex(([value]) => value > 0);
  if (first === -1) return '0 s';
  return parts
    .slice(first, first + 2)
    .filter(([value]) => value > 0)
    .map(([value, unit]) => `${value} ${unit}`)
    .join(' ');
}

export function bytes(size: number | null | undefined): string {
  if (size == null) return '–';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let value = size;
  let unit = 0;
  while (value >= 1_024 && unit < units.length - 1) {
    value /= 1_024;
    unit += 1;
  }
  return `${value.toLocaleString('en', { maximumFractionDigits: value < 10 && unit > 0 ? 1 : 0 })} ${units[unit]}`;
}

/** Local date and time to the second. */
export const dateTime = (at: number | string | Date): string =>
  new Date(at).toLocaleString(undefined, { dateStyle: 'medium', timeStyle: 'medium' });

/** Local time to the second, with the date if it is not today's. */
export function timeOfDay(at: number | string | Date): string {
  const date = new Date(at);
  if (date.toDateString() === new Date().toDateString()) return date.toLocaleTimeString();
  return date.toLocaleString(undefined, {
    month: 'short',
    day: 'numeric',
    timeStyle: undefined,
    hour: 'numeric',
    minute: '2-digit',
    second: '2-digit',
  });
}

/** Formats a time like `4 min ago`. */
export function ago(at: number | string | Date, nowMs = Date.now()): string {
  const ms = nowMs - new Date(at).getTime();
  if (ms < 1_500) return ms < -5_000 ? `in ${duration(-ms)}` : 'now';
  const [largest = ''] = duration(ms).match(/^\d+ \w+/) ?? [];
  return `${largest} ago`;
}
