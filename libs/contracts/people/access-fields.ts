import { z } from 'zod';
import { addBreach } from '../scalars.ts';

// Fields that API keys and virtual keys share.

/** The name used in `@slug/model` and in paths. It has no slash, so the model begins after the first slash. */
export const slug = () =>
  z
    .string()
    .min(1)
    .max(64)
    .regex(/^[a-zA-Z0-9_-]+$/);

/** A point in time as Unix seconds (the public API's form) or ISO 8601 text with an offset; the result is a Date. */
export const timestamp = () =>
  z.union([z.int('integer'), z.iso.datetime({ offset: true })]).transform((value, context) => {
    const date = new Date(typeof value === 'number' ? value * 1_000 : value);
    if (!Number.isNaN(date.getTime()) && date.getUTCFullYear() <= 9_999 && date.getTime() >= 0) return date;
    addBreach(context, {
      path: [],
      code: 'invalid_value',
      text: (name) =>
        `Invalid ${name()}: expected a time between the years 1970 and 9999, in Unix seconds or ISO 8601.`,
    });
    return z.NEVER;
  });

const networksMax = 50;
const networkForms = [z.cidrv4(), z.ipv4(), z.cidrv6(), z.ipv6()];

/** Networks and addresses that requests can come from; null for any. */
export const allowedNetworks = () => z.array(network()).min(1).max(networksMax).nullish();

const network = () =>
  z
    .string()
    .max(64)
    .transform((value, context) => {
      // IPv4 within IPv6 would never match, because such addresses are compared as IPv4.
      if (networkForms.some((form) => form.safeParse(value).success) && !/^::ffff:/i.test(value)) return value;
      addBreach(context, {
        path: [],
        code: 'invalid_value',
        text: (name) =>
          `Invalid ${name()}: expected an IP network or address, such as 203.0.113.0/24 or 2001:db8::/32.`,
      });
      return z.NEVER;
    });
