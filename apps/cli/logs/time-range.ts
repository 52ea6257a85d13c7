import { InvalidArgumentError } from 'commander';

const unitMs: Record<string, number> = { m: 60_000, h: 3_600_000, d: 86_400_000 };

/** Converts `30m`, `24h` or `7d` (before now) or a point in time to ISO 8601. Throws InvalidArgumentError. */
export function toMoment(text: string): string {
  const [, count, unit = ''] = /^(\d{1,5})([mhd])$/.exec(text) ?? [];
  const ms = count === undefined ? Date.parse(text) : Date.now() - Number(count) * (unitMs[unit] ?? Number.NaN);
  if (Number.isFinite(ms)) return new Date(ms).toISOString();
  throw new InvalidArgumentError('Use a time such as 2026-11-21T14:00Z, or a duration such as 30m, 24h or 7d.');
}
