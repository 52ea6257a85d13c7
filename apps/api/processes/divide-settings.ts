import type { ApiConfig } from '../config.ts';

/**
 * The settings that bound what one process holds of something that all share: memory, disk, database connections, sockets,
 * calls of a provider, and patience with wrong keys. Each has its smallest value for one process. Bounds that protect an
 * event loop, such as SLUICE_BODY_RATE_MAX, are not divided, because each process has its own.
 */
const dividedSettings = {
  SLUICE_MEMORY_MAX: 4_194_304,
  SLUICE_CACHE_MEMORY: 65_536,
  SLUICE_PROMPT_CACHE: 65_536,
  SLUICE_CHECK_THREADS: 2,
  SLUICE_DB_POOL_MAX: 2,
  SLUICE_CALLS_PER_CREDENTIAL: 1,
  SLUICE_CONNECTIONS: 4,
  SLUICE_PROVIDER_QUEUE: 1,
  SLUICE_REQUEST_LOG_DISK: 1,
  SLUICE_REQUEST_LOG_QUEUE: 100,
  SLUICE_EVENT_STREAMS_MAX: 1,
  SLUICE_EVENT_STREAMS_OF_WORKSPACE: 1,
  SLUICE_ANALYTICS_QUERIES: 1,
  SLUICE_ANALYTICS_WAITING: 1,
  SLUICE_WRONG_KEYS_PER_MINUTE: 1,
} as const satisfies Partial<Record<keyof ApiConfig, number>>;

type DividedSetting = keyof typeof dividedSettings;

/**
 * The settings of each of the API processes: the configured bounds divided by the number of processes. 0 stays 0, because
 * it turns something off.
 */
export function divideSettings(
  config: Pick<ApiConfig, DividedSetting | 'SLUICE_API_PROCESSES'>,
): Record<DividedSetting, string> {
  const divided = Object.entries(dividedSettings).map(([name, least]) => {
    const whole = config[name as DividedSetting];
    const part = Math.max(least, Math.ceil(whole / config.SLUICE_API_PROCESSES));
    return [name, String(whole === 0 ? 0 : part)];
  });
  return Object.fromEntries(divided) as Record<DividedSetting, string>;
}
