// Times, amounts and sizes for people.

/** Formats Unix seconds or an ISO 8601 text as `2026-11-21 14:03` in local time, optionally with seconds. */
export function formatTime(value: string | number | null | undefined, { seconds = false } = {}): string {
  if (value === null || value === undefined) return '-';
  const time = new Date(typeof value === 'number' ? value * 1_000 : value);
  if (Number.isNaN(time.getTime())) return String(value);
  const two = (part: number): string => String(part).padStart(2, '0');
  const day = `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())}`;
  const clock = [time.getHours(), time.getMinutes(), ...(seconds ? [time.getSeconds()] : [])];
  return `${day} ${clock.map(two).join(':')}`;
}

/** US dollars as the API returns them, with enough digits for small costs. */
export function formatDollars(usd: string | number | null | undefined): string {
  if (usd === null || usd === undefined) return '-';
  const dollars = Number(usd);
  const size = Math.abs(Number(dollars.toPrecision(3)));
  if (size === 0 || size >= 1) return `$${dollars.toFixed(2)}`;
  // Three significant digits. toFixed accepts at most 100 decimals.
  return `$${dollars.toFixed(Math.min(100, 2 - Math.floor(Math.log10(size))))}`;
}

/**
 * US dollars, including a part for simulated calls, which is not billed. `simulated`: that part, or whether it is the whole
 * amount.
 */
export function formatCost(usd: string | number | null, simulated: string | number | boolean | null = 0): string {
  if (usd === null || Number(simulated) === 0) return formatDollars(usd);
  // Both numbers are sums, which can be rounded differently.
  const isAll = simulated === true || Number(simulated) > Number(usd) * 0.999_999;
  return isAll
    ? `${formatDollars(usd)} simulated`
    : `${formatDollars(usd)}, ${formatDollars(Number(simulated))} simulated`;
}

/** Whether a batch or its lines use the simulator. */
export const usesSimulator = (model: string | null | undefined): boolean => model?.startsWith('@simulator/') === true;

/** A number of bytes with a unit. */
export function formatBytes(bytes: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let [value, power] = [bytes, 0];
  // A value that rounds to 1024.0 is shown as 1.0 of the next unit.
  while (value >= 1_023.95 && power < units.length - 1) [value, power] = [value / 1_024, power + 1];
  return `${power === 0 ? value : value.toFixed(1)} ${units[power]}`;
}

/** `45 s`, `3 min`, `2 h 5 min`, `90 days`. */
export function formatDuration(seconds: number): string {
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.round(minutes / 1_440)} days`;
}

/** `1 line`, `2 lines`. */
export const formatCount = (count: number, one: string, many = `${one}s`): string =>
  `${count} ${count === 1 ? one : many}`;
