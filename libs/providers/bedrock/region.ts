import { GatewayError } from '#libs/kernel/errors.ts';

/** The form of AWS's region names. It allows no characters that could change the host that the name becomes part of. */
const form = /^[a-z]{2,4}(-[a-z]{2,12}){1,3}-\d{1,2}$/;

/** Throws invalid_request for a text that is not a region's name, because it becomes part of the host that is called. */
export function assertRegion(region: string): void {
  if (form.test(region)) return;
  throw new GatewayError(
    'invalid_request',
    'invalid_value',
    "Invalid 'aws_region': expected a region name such as us-east-1.",
    { param: 'aws_region' },
  );
}

export const awsDomain = (region: string): string => (region.startsWith('cn-') ? 'amazonaws.com.cn' : 'amazonaws.com');
